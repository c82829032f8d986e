//! Snapshots as programs read them: one flat object, the rows of each table in an array of its name.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::snapshot::{Interval, Label, Rates, Row, Snapshot, Table};

/// Rates are those of the interval, distributions too; all other numbers are since the start.
impl Serialize for Interval<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("elapsed_s", &self.now.elapsed.as_secs_f64())?;
        map.serialize_entry("interval_s", &self.seconds())?;
        write(self, &mut map)?;
        map.end()
    }
}

/// A whole run: rates and distributions are since the start.
impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("duration_s", &self.elapsed.as_secs_f64())?;
        write(&self.since(None), &mut map)?;
        map.end()
    }
}

fn write<M: SerializeMap>(interval: &Interval<'_>, map: &mut M) -> Result<(), M::Error> {
    write_row(&interval.now.total, interval.total(), map)?;
    for table in &interval.now.tables {
        map.serialize_entry(table.name, &Rows { interval, table })?;
    }
    for distribution in &interval.now.distributions {
        map.serialize_entry(distribution.name, &interval.times(distribution).percentiles())?;
    }
    Ok(())
}

fn write_row<M: SerializeMap>(row: &Row, rates: Option<Rates>, map: &mut M) -> Result<(), M::Error> {
    for (name, label) in &row.labels {
        match label {
            Label::Number(number) => map.serialize_entry(name, number)?,
            Label::Text(text) => map.serialize_entry(name, text)?,
            Label::Flag(is_so) => map.serialize_entry(name, is_so)?,
        }
    }
    for (metric, value) in &row.values {
        map.serialize_entry(metric.name, value)?;
    }
    if let Some(rates) = rates {
        map.serialize_entry("rate_pps", &rates.pps)?;
        if let Some((l2, l1)) = rates.bps {
            map.serialize_entry("rate_l2_bps", &l2)?;
            map.serialize_entry("rate_l1_bps", &l1)?;
        }
    }
    Ok(())
}

struct Rows<'a> {
    interval: &'a Interval<'a>,
    table: &'a Table,
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { interval, table } = self;
        to.collect_seq(table.rows.iter().map(|row| OneRow { row, rates: interval.rates(table, row) }))
    }
}

struct OneRow<'a> {
    row: &'a Row,
    rates: Option<Rates>,
}

impl Serialize for OneRow<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        write_row(self.row, self.rates, &mut map)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{later, sooner};

    #[test]
    fn an_interval_has_totals_since_the_start_and_rates_of_itself() {
        let (sooner, later) = (sooner(), later());
        let json = serde_json::to_value(later.since(Some(&sooner))).unwrap();
        let expected = serde_json::json!({
            "elapsed_s": 3.0, "interval_s": 1.0,
            "rx_packets": 3000, "rx_bytes": 180_000, "lost_packets": 2, "depth": 7,
            "rate_pps": 2000, "rate_l2_bps": 1_024_000, "rate_l1_bps": 1_344_000,
            "queues": [
                { "queue": 0, "packets": 2000, "rate_pps": 1000 },
                { "queue": 1, "packets": 1000, "rate_pps": 1000 },
            ],
            "latency": {
                "count": 1, "min_ns": 2000, "p50_ns": 2000, "p90_ns": 2000, "p99_ns": 2000, "p99_9_ns": 2000,
                "p99_99_ns": 2000, "max_ns": 2000,
            },
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn every_event_is_in_the_documentation() {
        let (told, manual) = (include_str!("mod.rs"), include_str!("../../../../docs/reports.md"));
        let events: Vec<&str> =
            told.split("self.json(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(events.len() > 5, "{events:?}");
        for event in events {
            assert!(manual.contains(&format!("\n| `{event}` | ")), "{event}");
        }
    }

    #[test]
    fn a_run_has_rates_and_distributions_since_its_start() {
        let json = serde_json::to_value(later()).unwrap();
        assert_eq!((&json["duration_s"], &json["rate_pps"]), (&3.0.into(), &1000.into()));
        assert_eq!(json["latency"]["count"], 2);
        assert_eq!(json["queues"][1]["rate_pps"], 333);
    }
}
