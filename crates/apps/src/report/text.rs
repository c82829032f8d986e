//! Snapshots as people read them: the live line, and the pieces that summaries are made of.

use std::fmt::{self, Display};

use super::snapshot::{Interval, Kind, Rates, Row, Snapshot};
use crate::rate::{Bps, Pps};

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
        for (index, (name, label)) in self.0.labels.iter().enumerate() {
            // From where to where.
            let arrow = if *name == "to" { "-> " } else { "" };
            write!(f, "{}{arrow}{label}", if index == 0 { "" } else { " " })?;
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
