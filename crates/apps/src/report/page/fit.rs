//! Tables and sentences as lines that fit the terminal: a number is shown whole or not at all, as one that has lost its
//! first digits is a wrong one.

use std::cmp::Reverse;

use ratatui::style::Stylize;
use ratatui::text::{Line, Span};

use super::super::snapshot::{Interval, Kind, Row, Table};
use super::super::text::Labels;
use crate::rate::{Bps, Pps};

/// Columns of numbers have at least this width, so that they seldom move while numbers grow.
const NARROWEST: usize = 10;

/// A table's lines.
pub(super) struct Fitted {
    /// Its name, and which columns are left out; then the titles of the others.
    pub(super) head: Vec<Line<'static>>,
    /// Those of each row.
    pub(super) rows: Vec<Vec<Line<'static>>>,
}

/// The numbers of all rows under one title.
struct Numbers {
    title: String,
    cells: Vec<Span<'static>>,
    /// Some of them should be 0 and are not.
    is_fault: bool,
}

impl Numbers {
    fn width(&self) -> usize {
        self.cells.iter().map(Span::width).max().unwrap_or(0).max(self.title.len()).max(NARROWEST)
    }
}

impl Fitted {
    /// `table` in lines of `width` characters: the first columns, as many as fit, and before others those that tell of a
    /// fault. Where the names of the rows leave no room for a number, each has lines of its own.
    pub(super) fn new(table: &Table, interval: &Interval<'_>, width: usize) -> Self {
        let labels: Vec<String> = table.rows.iter().map(|row| Labels(row).to_string()).collect();
        let longest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
        let longest = longest.max(table.row.len());
        let columns = columns(table, interval);
        let inline = columns.first().is_none_or(|first| longest + 1 + first.width() <= width);
        let indent = if inline { longest } else { 0 };
        let (shown, hidden) = choose(&columns, width.saturating_sub(indent));

        let mut titles =
            vec![Span::raw(if inline { format!("{:longest$}", table.row) } else { String::new() })];
        titles.extend(shown.iter().map(|column| Span::raw(format!(" {:>1$}", column.title, column.width()))));
        let mut head = vec![title(table.name, &hidden, columns.len(), width)];
        head.push(Line::from(titles).bold());

        let row = |(index, label): (usize, &String)| {
            let mut lines = Vec::new();
            let mut numbers = Vec::new();
            if inline {
                numbers.push(Span::raw(format!("{label:longest$}")));
            } else {
                lines.extend(broken(label, width));
            }
            for column in &shown {
                let cell = &column.cells[index];
                numbers.push(Span::raw(" ".repeat(1 + column.width() - cell.width())));
                numbers.push(cell.clone());
            }
            lines.push(Line::from(numbers));
            lines
        };
        Self { head, rows: labels.iter().enumerate().map(row).collect() }
    }
}

/// All numbers of a table, the most important first.
fn columns(table: &Table, interval: &Interval<'_>) -> Vec<Numbers> {
    let rates = |row: &Row| interval.rates(table, row).unwrap_or_default();
    let column = |title: &str, cell: &dyn Fn(&Row) -> Span<'static>| Numbers {
        title: title.to_owned(),
        cells: table.rows.iter().map(cell).collect(),
        is_fault: false,
    };
    let mut columns = Vec::new();
    if table.rows.iter().any(|row| row.traffic().is_some()) {
        columns.push(column("packets/s", &|row| Span::raw(Pps(rates(row).pps).to_string())));
    }
    if table.rows.iter().any(|row| interval.rates(table, row).is_some_and(|rates| rates.bps.is_some())) {
        let l1 = |row: &Row| Bps(rates(row).bps.unwrap_or_default().1);
        columns.push(column("L1 bit/s", &|row| Span::raw(l1(row).to_string())));
    }
    // Rows need not have the same figures: those of the row with the most are those of all.
    let fullest = table.rows.iter().max_by_key(|row| row.values.len());
    let metrics = fullest.into_iter().flat_map(|row| &row.values).map(|(metric, _)| *metric);
    for metric in metrics.filter(|metric| metric.kind != Kind::Bytes) {
        let is_fault = |value: u64| metric.kind.is_fault() && value > 0;
        let name = metric.name.trim_end_matches("_packets").replace('_', " ");
        let mut numbers = column(&name, &|row| match row.value(metric.name) {
            Some(value) if is_fault(value) => Span::raw(value.to_string()).red(),
            Some(value) => Span::raw(value.to_string()),
            None => Span::raw("-"),
        });
        numbers.is_fault = table.rows.iter().filter_map(|row| row.value(metric.name)).any(is_fault);
        columns.push(numbers);
    }
    columns
}

/// The columns that fit `width`, in their order, and the titles of the others.
fn choose(columns: &[Numbers], width: usize) -> (Vec<&Numbers>, Vec<&str>) {
    let mut order: Vec<usize> = (0..columns.len()).collect();
    order.sort_by_key(|index| (Reverse(*index == 0), Reverse(columns[*index].is_fault)));
    let mut left = width;
    let mut chosen: Vec<usize> = order
        .into_iter()
        .map_while(|index| {
            left = left.checked_sub(1 + columns[index].width())?;
            Some(index)
        })
        .collect();
    chosen.sort_unstable();
    let hidden = (0..columns.len()).filter(|index| !chosen.contains(index));
    let hidden = hidden.map(|index| columns[index].title.as_str()).collect();
    (chosen.into_iter().map(|index| &columns[index]).collect(), hidden)
}

/// The line above a table.
fn title(name: &str, hidden: &[&str], all: usize, width: usize) -> Line<'static> {
    let mut title = format!(" {name} ");
    if !hidden.is_empty() {
        title = format!(" {name}; too narrow for: {} ", hidden.join(", "));
        if title.chars().count() > width {
            title = format!(" {name}, {} of {all} columns ", all - hidden.len());
        }
    }
    Line::from(format!("{title:─<width$}"))
}

/// A name in lines of at most `width` characters.
fn broken(name: &str, width: usize) -> Vec<Line<'static>> {
    let characters: Vec<char> = name.chars().collect();
    characters.chunks(width.max(1)).map(|part| Line::from(part.iter().collect::<String>())).collect()
}

/// `pieces` in lines of at most `width` characters, broken between pieces only.
pub(super) fn lines_of(
    pieces: Vec<Span<'static>>,
    between: &'static str,
    width: usize,
) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = Vec::new();
    for piece in pieces {
        match lines.last_mut() {
            Some(line) if line.width() + between.chars().count() + piece.width() <= width => {
                line.push_span(Span::raw(between));
                line.push_span(piece);
            }
            _ => lines.push(Line::from(piece)),
        }
    }
    lines
}
