//! The page of `--tui`: what it shows of a run. Pure drawing; the terminal is [`super::screen`]'s.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Bar, BarChart, Block, Borders, Paragraph, Sparkline};

use super::snapshot::{Distribution, Interval, Kind, Snapshot, Table};
use super::times::{Percentiles, Times, microseconds};
use crate::rate::Pps;

mod fit;

use fit::{Fitted, lines_of};

/// Seconds that the curve of the rate goes back.
const HISTORY: usize = 600;

/// Lines of the curve.
const CURVE: usize = 4;

/// Lines that the tables have before there is a curve: one with three rows, and how many more there are.
const LEAST_ROWS: usize = 6;

/// Lines that the histogram may have: with fewer, its bars say nothing.
const HISTOGRAM: std::ops::RangeInclusive<usize> = 5..=12;

/// Characters of a bar, so that its label fits.
const NARROWEST_BAR: usize = 4;

/// The first decade of the bars of a distribution, in nanoseconds.
const FIRST_BAR_NS: u64 = 100;

/// What the page knows.
#[derive(Default)]
pub(super) struct Page {
    /// What is being done, as it was told last.
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

    /// Draws everything. Where there is no room for all, the numbers come before the histogram and the curve.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let Some(now) = &self.now else { return };
        let interval = now.since(self.last.as_ref());
        let figures: Vec<(&Distribution, Percentiles)> = now
            .distributions
            .iter()
            .filter_map(|distribution| Some((distribution, distribution.times.percentiles()?)))
            .collect();
        let (width, height) = (usize::from(frame.area().width), usize::from(frame.area().height));
        let head = self.head_of(now, width);
        let totals = totals_of(&interval, width);
        let rows = self.rows_of(&interval, width);
        let percentiles = percentiles_of(&figures, width);
        let said = self.said(width);

        let left = height.saturating_sub(head.len() + totals.len() + percentiles.len() + said.len());
        let curve = if left >= CURVE + LEAST_ROWS { CURVE } else { 0 };
        let tables = rows.iter().map(Vec::len).sum::<usize>().min(left - curve);
        let chart = (left - curve - tables).min(*HISTOGRAM.end());
        let chart = if figures.is_empty() || !HISTOGRAM.contains(&chart) { 0 } else { chart };
        let length = |n: usize| Constraint::Length(u16::try_from(n).unwrap_or(u16::MAX));
        let areas = Layout::vertical([
            length(head.len()),
            length(totals.len()),
            length(curve),
            Constraint::Min(0),
            length(chart),
            length(percentiles.len()),
            length(said.len()),
        ])
        .areas(frame.area());
        let [head_area, totals_area, curve_area, tables_area, chart_area, percentiles_area, said_area] =
            areas;
        frame.render_widget(
            Paragraph::new(head).style(Style::new().add_modifier(Modifier::REVERSED)),
            head_area,
        );
        frame.render_widget(Paragraph::new(totals), totals_area);
        self.draw_curve(frame, curve_area);
        frame.render_widget(Paragraph::new(shown_of(rows, tables_area.height.into())), tables_area);
        if let Some((first, _)) = figures.first() {
            draw_times(frame, chart_area, first);
        }
        frame.render_widget(Paragraph::new(percentiles), percentiles_area);
        frame.render_widget(Paragraph::new(said).yellow(), said_area);
    }

    /// What runs, how long, and which keys there are.
    fn head_of(&self, now: &Snapshot, width: usize) -> Vec<Line<'static>> {
        let left = format!(" {}", self.title.lines().next().unwrap_or_default());
        let right = format!("{:.0} s   q: end   up, down: scroll ", now.elapsed.as_secs_f64());
        let room = width.saturating_sub(left.chars().count() + 1);
        if right.len() <= room {
            return vec![Line::from(format!("{left} {right:>room$}"))];
        }
        let mut lines = lines_of(words(&left), " ", width);
        lines.push(Line::from(right));
        lines
    }

    /// The last messages.
    fn said(&self, width: usize) -> Vec<Line<'static>> {
        let last = &self.messages[self.messages.len().saturating_sub(3)..];
        last.iter().flat_map(|message| lines_of(words(message), " ", width)).collect()
    }

    /// The lines of each row that is not scrolled away; a table's head is with the first of its rows.
    fn rows_of(&self, interval: &Interval<'_>, width: usize) -> Vec<Vec<Line<'static>>> {
        let mut skip = self.scroll;
        let mut all = Vec::new();
        let has_figures = |table: &&Table| table.rows.iter().any(|row| !row.values.is_empty());
        for table in interval.now.tables.iter().filter(has_figures) {
            let Fitted { mut head, rows } = Fitted::new(table, interval, width);
            let before = skip.min(rows.len());
            skip -= before;
            for row in rows.into_iter().skip(before) {
                // Only the first one finds it.
                let mut lines = std::mem::take(&mut head);
                lines.extend(row);
                all.push(lines);
            }
        }
        all
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
}

/// As many rows as `height` lines have room for, each whole, and how many there are beyond.
fn shown_of(rows: Vec<Vec<Line<'static>>>, height: usize) -> Vec<Line<'static>> {
    if rows.iter().map(Vec::len).sum::<usize>() <= height {
        return rows.into_iter().flatten().collect();
    }
    let (mut lines, mut beyond) = (Vec::new(), 0);
    for row in rows {
        if beyond == 0 && lines.len() + row.len() < height {
            lines.extend(row);
        } else {
            beyond += 1;
        }
    }
    lines.push(Line::from(format!("{beyond} more rows (down)")).italic());
    lines
}

/// The rates of all together, and the counts: what had better be 0 in red where it is not.
fn totals_of(interval: &Interval<'_>, width: usize) -> Vec<Line<'static>> {
    let rates = interval.total().map(|rates| rates.to_string()).unwrap_or_default();
    let rates = rates.split(", ").map(|rate| Span::raw(rate.to_owned()).bold()).collect();
    let total = &interval.now.total;
    let counts =
        total.values.iter().filter(|(metric, _)| metric.kind != Kind::Bytes).map(|(metric, value)| {
            let text = Span::raw(format!("{value} {}", metric.noun));
            if metric.kind.is_fault() && *value > 0 { text.red().bold() } else { text }
        });
    let mut lines = lines_of(rates, ", ", width);
    lines.extend(lines_of(counts.collect(), " · ", width));
    lines
}

/// The figures of all distributions.
fn percentiles_of(figures: &[(&Distribution, Percentiles)], width: usize) -> Vec<Line<'static>> {
    let wide = figures.iter().map(|(distribution, _)| distribution.name.len()).max().unwrap_or(0);
    let lines = figures.iter().flat_map(|(distribution, figures)| {
        let mut pieces = vec![Span::raw(format!("{:wide$}", distribution.name))];
        let figures = figures.to_string();
        let words: Vec<&str> = figures.split_whitespace().collect();
        // A name and its number; the unit is alone.
        pieces.extend(words.chunks(2).map(|pair| Span::raw(pair.join(" "))));
        lines_of(pieces, " ", width)
    });
    lines.collect()
}

fn words(text: &str) -> Vec<Span<'static>> {
    text.split(' ').map(|word| Span::raw(word.to_owned())).collect()
}

/// A distribution as bars, unless there is no room for all of them.
fn draw_times(frame: &mut Frame<'_>, area: Rect, distribution: &Distribution) {
    let times = &distribution.times;
    let all = |ends: &[u64]| bars(times, ends);
    let fits = |bars: &Vec<(u64, u64)>| bars.len() * (NARROWEST_BAR + 1) <= usize::from(area.width) + 1;
    let Some(bars) = [all(&[1, 2, 5]), all(&[1])].into_iter().find(fits) else { return };
    let width = usize::from(area.width) / bars.len().max(1);
    let width = width.saturating_sub(1).clamp(NARROWEST_BAR, 8);
    let bar = |(ns, count): &(u64, u64)| {
        Bar::default().value(*count).label(label(*ns)).text_value(share(*count, times.count()))
    };
    let bars: Vec<Bar<'_>> = bars.iter().map(bar).collect();
    let title = format!(" {}: packets that took up to ", distribution.name);
    let chart = BarChart::default()
        .block(Block::new().borders(Borders::TOP).title(title))
        .bar_width(u16::try_from(width).unwrap_or(u16::MAX))
        .data(ratatui::widgets::BarGroup::default().bars(&bars));
    frame.render_widget(chart, area);
}

/// Upper ends in nanoseconds, at these multiples of each decade, and how many times lie below each and above the one
/// before; from the first that has some to the last.
fn bars(times: &Times, ends: &[u64]) -> Vec<(u64, u64)> {
    let (mut bars, mut below, mut decade) = (Vec::new(), 0, FIRST_BAR_NS);
    while below < times.count() && decade < u64::MAX / 50 {
        for end in ends.iter().map(|end| decade * end) {
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
    use super::super::snapshot::{Label, Metric, Row};
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

    /// Eight queues with every kind of figure and large numbers, and flows with long names.
    fn full_page() -> Page {
        const METRICS: [Metric; 6] = [
            Metric::packets("packets", "packets", ""),
            Metric::bytes("bytes", "bytes", ""),
            Metric::count("right_packets", "of a generator", ""),
            Metric::fault("reordered_packets", "reordered", ""),
            Metric::count("foreign_packets", "foreign", ""),
            Metric::fault("damaged_packets", "damaged", ""),
        ];
        let row = |labels, n: u64| Row {
            labels,
            values: METRICS.into_iter().zip([n, n * 1234, n, 0, n, 98_765]).collect(),
        };
        let at = |seconds: u64| {
            let packets = seconds * 12_340_000;
            let mut snapshot = if seconds == 1 { sooner() } else { later() };
            snapshot.elapsed = std::time::Duration::from_secs(seconds);
            let queues = (0..4_usize).map(|queue| row(vec![("queue", queue.into())], packets));
            snapshot.tables[0].rows = queues.collect();
            let flow =
                |n: u64| format!("udp [2001:db8:1234:5678:9abc:def0:1111:{n}]:1000 -> [2001:db8::2]:9");
            let flows = (1..3).map(|n| row(vec![("flow", Label::from(flow(n).as_str()))], packets));
            let flows =
                Table { name: "flows", row: "flow", rows: flows.collect(), ..snapshot.tables[0].clone() };
            snapshot.tables.push(flows);
            snapshot
        };
        let mut page = Page { title: "receiving".into(), ..Page::default() };
        page.add(at(1));
        page.add(at(2));
        page
    }

    #[test]
    fn numbers_are_whole_or_not_there_at_all_widths() {
        let page = full_page();
        let whole = ["12.34", "24680000", "98765", "124.2", "2", "1", "0", "3", "7", "3000"];
        for width in 24..200 {
            let lines = drawn(&page, width, 60);
            let from = lines.iter().position(|line| line.starts_with(" queues")).unwrap();
            let to = lines.iter().position(|line| line.starts_with(" flows")).unwrap();
            let queues = &lines[from + 2..to];
            assert_eq!(queues.len(), 4, "{}", lines.join("\n"));
            for row in queues {
                assert!(row.contains(" 12.34 Mpps"), "{width}: {row}");
                let numbers =
                    row.split_whitespace().filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
                numbers.for_each(|number| assert!(whole.contains(&number), "{width}: '{number}' in {row}"));
            }
            // What is missing is said, and a fault is not what is missing first.
            let (title, heads) = (&lines[from], &lines[from + 1]);
            let all = ["packets/s", "L1 bit/s", "right", "foreign", "reordered", "damaged"];
            let is_whole = all.iter().all(|name| heads.contains(name));
            assert_eq!(
                is_whole,
                !title.contains("too narrow") && !title.contains("columns"),
                "{title}\n{heads}"
            );
            assert!(width < 30 || heads.contains("damaged"), "{width}: {heads}");
            let flows: String = lines[to + 2..].iter().map(String::as_str).collect();
            assert!(flows.contains(":1111:1]:1000 -> [2001:db8::2]:9") || width < 70, "{width}: {flows}");
        }
    }

    #[test]
    fn an_ordinary_terminal_shows_every_queue_and_flow() {
        let lines = drawn(&full_page(), 80, 24);
        let text = lines.join("\n");
        for queue in 0..4 {
            assert!(lines.iter().any(|line| line.starts_with(&format!("{queue}  "))), "{queue}:\n{text}");
        }
        for part in ["1111:1]:1000", "1111:2]:1000", "p99.99", "3000 received"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let lines = drawn(&full_page(), 80, 12);
        assert!(lines.iter().any(|line| line.contains("more rows")), "{}", lines.join("\n"));
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
        let total: u64 =
            bars(&later().distributions[0].times, &[1, 2, 5]).iter().map(|(_, count)| count).sum();
        assert_eq!(total, 2);
        assert_eq!(bars(&Times::default(), &[1, 2, 5]), []);
        let mut stopwatch = super::super::times::Stopwatch::new();
        stopwatch.record(u64::MAX);
        assert_eq!(
            bars(&Times::read([&stopwatch.dial()]), &[1, 2, 5]).iter().map(|(_, count)| count).sum::<u64>(),
            1
        );
    }
}
