//! Snapshots as people read them: the live line, and the pieces that summaries are made of.

use std::fmt::{self, Display};

use super::snapshot::{Interval, Kind, Label, Metric, Rates, Row, Snapshot};
use crate::rate::{Bps, Pps, per_second};

impl Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Pps(self.pps))?;
        self.bps.map_or(Ok(()), |(l2, l1)| write!(f, ", {} (L2), {} (L1)", Bps(l2), Bps(l1)))
    }
}

/// The live line.
impl Display for Interval<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} s", self.now.elapsed.as_secs_f64())?;
        write_programs(f, self)?;
        write_packets(f, "   ", &self.now.total)?;
        if let Some(rates) = self.total() {
            write!(f, "   {rates}")?;
        }
        for table in self.now.tables.iter().filter(|table| table.in_line) {
            for row in &table.rows {
                let rates = self.rates(table, row).unwrap_or_default();
                write!(f, "   {} {}", Labels(row), Pps(rates.pps))?;
            }
        }
        for (metric, value) in self.now.total.faults() {
            write!(f, "   {value} {}", metric.noun)?;
        }
        for distribution in &self.now.distributions {
            if let Some(figures) = self.times(distribution).percentiles() {
                let [_, p50, _, p99, ..] = figures.values().map(super::times::microseconds);
                write!(f, "   {} p50 {p50:.1} p99 {p99:.1} µs", distribution.name)?;
            }
        }
        Ok(())
    }
}

/// What programs have done, and how fast.
fn write_programs(f: &mut fmt::Formatter<'_>, interval: &Interval<'_>) -> fmt::Result {
    let values = &interval.now.total.values;
    let is_done = |(metric, value): &(Metric, u64)| metric.kind == Kind::Packets || *value > 0;
    if !values.iter().any(is_done) {
        return f.write_str("   nothing");
    }
    for (metric, value) in values.iter().filter(|(_, value)| *value > 0) {
        let rate = |each| per_second(interval.growth(metric).saturating_mul(each), interval.seconds());
        match metric.kind {
            Kind::Events => write!(f, "   {value} {}, {}/s", metric.noun, rate(1))?,
            Kind::Payload => write!(f, "   {value} {}, {}", metric.noun, Bps(rate(8)))?,
            _ => {}
        }
    }
    Ok(())
}

/// The packets that the rates are of.
fn write_packets(f: &mut fmt::Formatter<'_>, before: &str, row: &Row) -> fmt::Result {
    let packets = row.values.iter().filter(|(metric, _)| metric.kind == Kind::Packets);
    for (metric, value) in packets {
        write!(f, "{before}{value} {}", metric.noun)?;
    }
    Ok(())
}

/// What tells a row from the others, for people: `null: -> tap:a`, `3`.
pub(super) struct Labels<'a>(pub(super) &'a Row);

impl Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.labels.iter().filter(|(_, label)| *label != Label::Flag(false));
        for (index, (name, label)) in shown.enumerate() {
            f.write_str(if index == 0 { "" } else { " " })?;
            match (*name, label) {
                (_, Label::Flag(_)) => write!(f, "({})", name.replace('_', " "))?,
                // From where to where.
                ("to", _) => write!(f, "-> {label}")?,
                _ => label.fmt(f)?,
            }
        }
        Ok(())
    }
}

impl Snapshot {
    /// A line for each row that is worth one, after a line break: what it is, how many packets, what went wrong.
    pub(crate) fn write_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in &self.tables {
            let is_news = table.rows.len() > table.usual;
            for row in table.rows.iter().filter(|row| is_news || row.faults().next().is_some()) {
                let packets = row.values.iter().filter(|(metric, _)| metric.kind == Kind::Packets);
                let parts: Vec<String> = packets
                    .map(|(metric, value)| format!("{value} {}", metric.noun))
                    .chain(row.rates(None, self.elapsed.as_secs_f64()).map(|rates| rates.to_string()))
                    .chain(row.faults().map(|(metric, value)| format!("{value} {}", metric.noun)))
                    .collect();
                write!(f, "\n  {} {}: {}", table.row, Labels(row), parts.join(", "))?;
            }
        }
        Ok(())
    }

    /// A line for each distribution, after a line break.
    pub(crate) fn write_distributions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.distributions.iter().map(|distribution| distribution.name.len()).max().unwrap_or(0);
        for distribution in &self.distributions {
            if let Some(figures) = distribution.times.percentiles() {
                write!(f, "\n  {:width$}{figures}", distribution.name)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{later, sooner};
    use super::*;

    #[test]
    fn the_live_line_says_what_happened_in_the_interval() {
        let (sooner, later) = (sooner(), later());
        assert_eq!(
            later.since(Some(&sooner)).to_string(),
            "3 s   3000 received   2.00 kpps, 1.02 Mbit/s (L2), 1.34 Mbit/s (L1)   0 1.00 kpps   1 1.00 kpps   2 lost   \
             latency p50 2.0 p99 2.0 µs"
        );
    }

    #[test]
    fn the_live_line_of_programs_has_their_bytes_and_rates() {
        let at = |seconds, values: [u64; 3]| {
            let metrics = [
                Metric::events("requests", "requests", "Requests answered"),
                Metric::payload("received_bytes", "bytes in", "Bytes received"),
                Metric::gauge("depth", "waiting", "What waits"),
            ];
            let total = Row { labels: Vec::new(), values: metrics.into_iter().zip(values).collect() };
            Snapshot { elapsed: std::time::Duration::from_secs(seconds), total, ..Snapshot::default() }
        };
        let (none, sooner, later) = (at(1, [0; 3]), at(2, [100, 5000, 1]), at(4, [300, 255_000, 1]));
        assert_eq!(none.since(None).to_string(), "1 s   nothing");
        assert_eq!(sooner.since(None).to_string(), "2 s   100 requests, 50/s   5000 bytes in, 20.00 kbit/s");
        assert_eq!(
            later.since(Some(&sooner)).to_string(),
            "4 s   300 requests, 100/s   255000 bytes in, 1.00 Mbit/s"
        );
    }

    #[test]
    fn a_flag_is_told_in_words_where_it_is_so() {
        let told = |is_so: bool| {
            let labels = vec![("rule", Label::from("a")), ("to", "b".into()), ("dry_run", is_so.into())];
            Labels(&Row { labels, values: Vec::new() }).to_string()
        };
        assert_eq!([false, true].map(told), ["a -> b", "a -> b (dry run)"]);
    }

    #[test]
    fn a_summary_has_a_line_for_each_row() {
        struct Text(Snapshot);
        impl Display for Text {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.write_rows(f)?;
                self.0.write_distributions(f)
            }
        }
        assert_eq!(
            Text(later()).to_string(),
            "\n  queue 0: 2000 packets, 667 pps\n  queue 1: 1000 packets, 333 pps\n  \
             latency min 1.0 p50 1.0 p90 2.0 p99 2.0 p99.9 2.0 p99.99 2.0 max 2.0 µs"
        );
    }
}
