//! The page of `--tui`: what it shows of a run. Pure drawing; the terminal is [`super::screen`]'s.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Bar, BarChart, Block, Borders, Cell, Paragraph, Row as Cells, Sparkline, Table as Grid,
};

use super::snapshot::{Distribution, Interval, Kind, Row, Snapshot, Table};
use super::text::Labels;
use super::times::{Percentiles, Times, microseconds};
use crate::rate::{Bps, Pps};

/// Seconds that the curve of the rate goes back.
const HISTORY: usize = 600;

/// Ends of the bars of a distribution, in nanoseconds: 1, 2 and 5 in each decade from 100 ns on.
const FIRST_BAR_NS: u64 = 100;

/// What the page knows.
#[derive(Default)]
pub(super) struct Page {
    /// What is being done, as it was told at the start.
    pub(super) title: String,
    /// Warnings and the like, the last ones last.
    pub(super) messages: Vec<String>,
    /// Packets per second, the last one last.
    rates: VecDeque<u64>,
    last: Option<Snapshot>,
    now: Option<Snapshot>,
    /// Rows scrolled down.
    scroll: usize,
}

impl Page {
    /// The next second is over.
    pub(super) fn add(&mut self, now: Snapshot) {
        self.last = self.now.take();
        // The first one is taken at the start, when nothing has a rate yet.
        if let Some(last) = &self.last {
            let rates = now.since(Some(last)).total().unwrap_or_default();
            self.rates.push_back(rates.pps);
            if self.rates.len() > HISTORY {
                self.rates.pop_front();
            }
        }
        self.now = Some(now);
    }

    /// Shows rows further down, or further up; not beyond the last one.
    pub(super) fn scroll(&mut self, rows: isize) {
        let all: usize = self.now.iter().flat_map(|now| &now.tables).map(|table| table.rows.len()).sum();
        self.scroll = self.scroll.saturating_add_signed(rows).min(all.saturating_sub(1));
    }

    /// Draws everything.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let Some(now) = &self.now else { return };
        let interval = now.since(self.last.as_ref());
        let figures: Vec<(&Distribution, Percentiles)> = now
            .distributions
            .iter()
            .filter_map(|distribution| Some((distribution, distribution.times.percentiles()?)))
            .collect();
        let messages = self.messages.len().min(3);
        let length = |n: usize| Constraint::Length(u16::try_from(n).unwrap_or(u16::MAX));
        let chart = if figures.is_empty() { 0 } else { 12 + figures.len() };
        let [head, totals, curve, tables, times, said] = Layout::vertical([
            length(1),
            length(2),
            length(4),
            Constraint::Min(3),
            length(chart),
            length(messages),
        ])
        .areas(frame.area());
        self.draw_head(frame, head, now);
        frame.render_widget(totals_of(&interval), totals);
        self.draw_curve(frame, curve);
        self.draw_tables(frame, tables, &interval);
        if let Some((first, _)) = figures.first() {
            draw_times(frame, times, first, &figures);
        }
        let last = &self.messages[self.messages.len() - messages..];
        frame.render_widget(
            Paragraph::new(last.iter().map(|m| Line::from(m.as_str())).collect::<Vec<_>>()).yellow(),
            said,
        );
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect, now: &Snapshot) {
        let left = format!(" {}", self.title.lines().next().unwrap_or_default());
        let right = format!("{:.0} s   q: end   up, down: scroll ", now.elapsed.as_secs_f64());
        let style = Style::new().add_modifier(Modifier::REVERSED);
        let [left_area, right_area] = Layout::horizontal([
            Constraint::Min(0),
            Constraint::Length(u16::try_from(right.len()).unwrap_or(0)),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(left).style(style), left_area);
        frame.render_widget(Paragraph::new(right).style(style).alignment(Alignment::Right), right_area);
    }

    fn draw_curve(&self, frame: &mut Frame<'_>, area: Rect) {
        let highest = self.rates.iter().copied().max().unwrap_or(0);
        let block =
            Block::new().borders(Borders::TOP).title(format!(" packets/s, highest {} ", Pps(highest)));
        let width = usize::from(area.width);
        let rates: Vec<u64> =
            self.rates.iter().copied().skip(self.rates.len().saturating_sub(width)).collect();
        frame.render_widget(Sparkline::default().block(block).data(rates).cyan(), area);
    }

    /// The tables one below the other, scrolled as one.
    fn draw_tables(&self, frame: &mut Frame<'_>, area: Rect, interval: &Interval<'_>) {
        let mut skip = self.scroll;
        let mut area = area;
        let tables =
            interval.now.tables.iter().filter(|table| table.rows.iter().any(|row| !row.values.is_empty()));
        for table in tables {
            let rows = table.rows.len();
            if skip >= rows {
                skip -= rows;
                continue;
            }
            let wanted = u16::try_from(rows - skip + 2).unwrap_or(u16::MAX);
            let height = wanted.min(area.height);
            if height < 3 {
                return;
            }
            let (place, rest) =
                (Rect { height, ..area }, Rect { y: area.y + height, height: area.height - height, ..area });
            draw_table(frame, place, table, interval, skip);
            (skip, area) = (0, rest);
        }
    }
}

/// The rates of all together, and the counts: what had better be 0 in red where it is not.
fn totals_of(interval: &Interval<'_>) -> Paragraph<'static> {
    let total = &interval.now.total;
    let mut counts = Vec::new();
    for (metric, value) in total.values.iter().filter(|(metric, _)| metric.kind != Kind::Bytes) {
        if !counts.is_empty() {
            counts.push(Span::raw(" · "));
        }
        let text = Span::raw(format!("{value} {}", metric.noun));
        counts.push(if metric.kind == Kind::Fault && *value > 0 { text.red().bold() } else { text });
    }
    let rates = interval.total().map(|rates| rates.to_string()).unwrap_or_default();
    Paragraph::new(vec![Line::from(rates).bold(), Line::from(counts)])
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, table: &Table, interval: &Interval<'_>, skip: usize) {
    let first = table.rows.first();
    let rated = first.is_some_and(|row| row.traffic().is_some());
    let has_bytes = first.and_then(|row| interval.rates(table, row)).is_some_and(|rates| rates.bps.is_some());
    // Rows need not have the same figures: those of the row with the most are those of all.
    let fullest = table.rows.iter().max_by_key(|row| row.values.len());
    let metrics = fullest.into_iter().flat_map(|row| &row.values).map(|(metric, _)| *metric);
    let metrics: Vec<_> = metrics.filter(|metric| metric.kind != Kind::Bytes).collect();
    let mut titles = vec![table.row.to_owned()];
    titles.extend(rated.then(|| "packets/s".to_owned()));
    titles.extend(has_bytes.then(|| "L1 bit/s".to_owned()));
    titles.extend(metrics.iter().map(|metric| metric.name.trim_end_matches("_packets").replace('_', " ")));
    let cells = |row: &Row| {
        let rates = interval.rates(table, row).unwrap_or_default();
        let mut cells = vec![Cell::from(Labels(row).to_string())];
        let right = |text: String| Cell::from(Line::from(text).right_aligned());
        cells.extend(rated.then(|| right(Pps(rates.pps).to_string())));
        cells.extend(has_bytes.then(|| right(Bps(rates.bps.unwrap_or_default().1).to_string())));
        cells.extend(metrics.iter().map(|metric| {
            let Some(value) = row.value(metric.name) else { return right("-".into()) };
            let cell = right(value.to_string());
            if metric.kind == Kind::Fault && value > 0 { cell.red() } else { cell }
        }));
        Cells::new(cells)
    };
    let rows: Vec<Cells<'_>> = table.rows.iter().skip(skip).map(cells).collect();
    let labels = table.rows.iter().map(|row| Labels(row).to_string().chars().count()).max().unwrap_or(0);
    let width = |n: usize| Constraint::Length(u16::try_from(n).unwrap_or(u16::MAX));
    let mut widths = vec![width(labels.max(table.row.len()))];
    widths.extend(titles.iter().skip(1).map(|title| width(title.len().max(13))));
    let head = titles.into_iter().enumerate().map(|(index, title)| {
        let line = Line::from(title);
        Cell::from(if index == 0 { line } else { line.right_aligned() })
    });
    let block = Block::new().borders(Borders::TOP).title(format!(" {} ", table.name));
    let grid = Grid::new(rows, widths).header(Cells::new(head).bold()).block(block);
    frame.render_widget(grid, area);
}

/// The first distribution as bars, and the figures of all.
fn draw_times(
    frame: &mut Frame<'_>,
    area: Rect,
    first: &Distribution,
    figures: &[(&Distribution, Percentiles)],
) {
    let [chart, lines] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(u16::try_from(figures.len()).unwrap_or(1))])
            .areas(area);
    let bars = bars(&first.times);
    let bars: Vec<Bar<'_>> = bars
        .iter()
        .map(|(ns, count)| {
            Bar::default().value(*count).label(label(*ns)).text_value(share(*count, first.times.count()))
        })
        .collect();
    let block =
        Block::new().borders(Borders::TOP).title(format!(" {}: packets that took up to ", first.name));
    let width = u16::try_from(bars.len().max(1)).unwrap_or(u16::MAX);
    let width = (chart.width / width).saturating_sub(1).clamp(3, 8);
    frame.render_widget(
        BarChart::default()
            .block(block)
            .bar_width(width)
            .data(ratatui::widgets::BarGroup::default().bars(&bars)),
        chart,
    );
    let wide = figures.iter().map(|(distribution, _)| distribution.name.len()).max().unwrap_or(0);
    let text: Vec<Line<'_>> = figures
        .iter()
        .map(|(distribution, figures)| Line::from(format!("{:wide$} {figures}", distribution.name)))
        .collect();
    frame.render_widget(Paragraph::new(text), lines);
}

/// Upper ends in nanoseconds, and how many times lie below each and above the one before; from the first that has some
/// to the last.
fn bars(times: &Times) -> Vec<(u64, u64)> {
    let (mut bars, mut below, mut decade) = (Vec::new(), 0, FIRST_BAR_NS);
    while below < times.count() && decade < u64::MAX / 50 {
        for end in [decade, decade * 2, decade * 5] {
            let up_to = times.count_up_to(end);
            if up_to > 0 && below < times.count() {
                bars.push((end, up_to - below));
            }
            below = up_to;
        }
        decade *= 10;
    }
    bars
}

fn label(ns: u64) -> Line<'static> {
    let us = microseconds(ns);
    Line::from(if us < 1000.0 {
        format!("{us}µ")
    } else if us < 1e6 {
        format!("{}m", us / 1e3)
    } else {
        format!("{}s", us / 1e6)
    })
}

#[expect(clippy::cast_precision_loss, reason = "a share in per cent, for people")]
fn share(part: u64, whole: u64) -> String {
    let percent = part as f64 * 100.0 / whole.max(1) as f64;
    if percent >= 9.95 {
        format!("{percent:.0}%")
    } else if percent >= 0.05 {
        format!("{percent:.1}%")
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::samples::{later, sooner};
    use super::*;

    fn drawn(page: &Page, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| page.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(row).collect()
    }

    fn page() -> Page {
        let mut page = Page { title: "receiving on xdp:eth1 (copy), 1 worker(s)".into(), ..Page::default() };
        page.add(sooner());
        page.add(later());
        page
    }

    #[test]
    fn a_page_shows_rates_rows_and_the_histogram() {
        let mut page = page();
        page.messages.push("warning: 4 KiB pages".into());
        let lines = drawn(&page, 80, 32);
        let expected = include_str!("page.snapshot");
        assert_eq!(lines.join("\n").trim_end(), expected.trim_end(), "{}", lines.join("\n"));
    }

    #[test]
    fn scrolling_leaves_out_the_first_rows() {
        let mut page = page();
        page.scroll(-5);
        page.scroll(1);
        let lines = drawn(&page, 80, 32);
        assert!(
            lines.iter().any(|line| line.starts_with("1 "))
                && !lines.iter().any(|line| line.starts_with("0 "))
        );
    }

    #[test]
    fn every_size_of_terminal_can_be_drawn_on() {
        let page = page();
        for (width, height) in [(1, 1), (3, 50), (200, 2), (20, 8), (400, 200)] {
            drawn(&page, width, height);
        }
        drawn(&Page::default(), 80, 24);
    }

    #[test]
    fn bars_cover_all_times() {
        let total: u64 = bars(&later().distributions[0].times).iter().map(|(_, count)| count).sum();
        assert_eq!(total, 2);
        assert_eq!(bars(&Times::default()), []);
        let mut stopwatch = super::super::times::Stopwatch::new();
        stopwatch.record(u64::MAX);
        assert_eq!(bars(&Times::read([&stopwatch.dial()])).iter().map(|(_, count)| count).sum::<u64>(), 1);
    }
}
