//! Snapshots in the text format that Prometheus reads (version 0.0.4).
//!
//! A number of the total row is `bywash_NAME`, one of a table's row `bywash_ROW_NAME` with the row's labels: so nothing
//! is counted twice when a family is summed up. What only grows ends in `_total`. There are no rates: that is what
//! Prometheus is for.

use std::fmt::Write;

use super::snapshot::{Distribution, Label, Metric, Row, Snapshot, Table};

/// The type of what [`exposition`] writes.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper ends of the buckets of a distribution, in nanoseconds: 1, 2 and 5 in each decade, up to ten seconds.
const BUCKETS_NS: [u64; 22] = {
    let mut buckets = [0; 22];
    let (mut index, mut decade) = (0, 1_000);
    while index < buckets.len() {
        buckets[index] = decade * [1, 2, 5][index % 3];
        index += 1;
        if index % 3 == 0 {
            decade *= 10;
        }
    }
    buckets
};

/// What a scrape is answered with.
pub(super) fn exposition(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let about = Metric::gauge("info", "", "What is running; always 1");
    let (command, version) = (snapshot.command, env!("CARGO_PKG_VERSION"));
    let labels = [("command", Label::from(command)), ("version", Label::from(version))];
    family(&mut text, "bywash_", about, [(&labels[..], 1)].into_iter());
    let elapsed = "bywash_elapsed_seconds";
    head(&mut text, elapsed, "How long it has run", "gauge");
    line(&mut text, elapsed, &[], snapshot.elapsed.as_secs_f64());
    for (metric, value) in &snapshot.total.values {
        family(&mut text, "bywash_", *metric, [(&snapshot.total.labels[..], *value)].into_iter());
    }
    for table in snapshot.tables.iter().filter(|table| table.in_metrics) {
        write_table(&mut text, table);
    }
    for distribution in &snapshot.distributions {
        write_distribution(&mut text, distribution);
    }
    text
}

/// Each family once, with all rows that have it: rows need not have the same ones.
fn write_table(text: &mut String, table: &Table) {
    let prefix = format!("bywash_{}_", table.row);
    let mut written = Vec::new();
    for (metric, _) in table.rows.iter().flat_map(|row| &row.values) {
        if written.contains(&metric.name) {
            continue;
        }
        written.push(metric.name);
        let sample = |row: &'_ Row| row.value(metric.name);
        let rows = table.rows.iter().filter_map(|row| Some((&row.labels[..], sample(row)?)));
        family(text, &prefix, *metric, rows);
    }
}

fn write_distribution(text: &mut String, distribution: &Distribution) {
    let times = &distribution.times;
    let name = format!("bywash_{}_seconds", distribution.name);
    head(text, &name, distribution.help, "histogram");
    let bucket = format!("{name}_bucket");
    for ns in BUCKETS_NS {
        let label = [("le", Label::Text(seconds(ns).to_string()))];
        line(text, &bucket, &label, times.count_up_to(ns));
    }
    line(text, &bucket, &[("le", Label::from("+Inf"))], times.count());
    line(text, &format!("{name}_sum"), &[], times.total_seconds());
    line(text, &format!("{name}_count"), &[], times.count());
}

#[expect(clippy::cast_precision_loss, reason = "a bucket's end has one digit")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn family<'a>(
    text: &mut String,
    prefix: &str,
    metric: Metric,
    samples: impl Iterator<Item = (&'a [(&'static str, Label)], u64)>,
) {
    let (kind, end) = if metric.kind.may_fall() { ("gauge", "") } else { ("counter", "_total") };
    let name = format!("{prefix}{}{end}", metric.name);
    head(text, &name, metric.help, kind);
    for (labels, value) in samples {
        line(text, &name, labels, value);
    }
}

fn head(text: &mut String, name: &str, help: &str, kind: &str) {
    let help = help.replace('\\', "\\\\").replace('\n', "\\n");
    // Writing to a string can't fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &[(&str, Label)], value: impl std::fmt::Display) {
    text.push_str(name);
    for (index, (key, label)) in labels.iter().enumerate() {
        let label = label.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(text, "{}{key}=\"{label}\"", if index == 0 { "{" } else { "," });
    }
    let _ = writeln!(text, "{} {value}", if labels.is_empty() { "" } else { "}" });
}

#[cfg(test)]
mod tests {
    use super::super::samples::later;
    use super::*;

    #[test]
    fn an_exposition_has_each_family_once_with_all_its_rows() {
        let text = exposition(&later());
        for part in [
            "# HELP bywash_info What is running; always 1\n# TYPE bywash_info gauge\nbywash_info{command=\"sample\",version=\"",
            "# TYPE bywash_elapsed_seconds gauge\nbywash_elapsed_seconds 3\n",
            "# TYPE bywash_rx_packets_total counter\nbywash_rx_packets_total 3000\n",
            "# TYPE bywash_depth gauge\nbywash_depth 7\n",
            "# TYPE bywash_lost_packets gauge\nbywash_lost_packets 2\n",
            "# HELP bywash_queue_packets_total Packets received\n# TYPE bywash_queue_packets_total counter\n\
             bywash_queue_packets_total{queue=\"0\"} 2000\nbywash_queue_packets_total{queue=\"1\"} 1000\n",
            "# TYPE bywash_latency_seconds histogram\nbywash_latency_seconds_bucket{le=\"0.000001\"} 1\n\
             bywash_latency_seconds_bucket{le=\"0.000002\"} 2\n",
            "bywash_latency_seconds_bucket{le=\"10\"} 2\nbywash_latency_seconds_bucket{le=\"+Inf\"} 2\n\
             bywash_latency_seconds_sum 0.000003\nbywash_latency_seconds_count 2\n",
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
        let heads: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let mut different = heads.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!(heads.len(), different.len());
    }

    #[test]
    fn names_with_quotes_and_line_breaks_stay_in_their_line() {
        let mut text = String::new();
        line(&mut text, "x", &[("port", Label::from("a\"b\\c\nd")), ("queue", Label::Number(1))], 5);
        assert_eq!(text, "x{port=\"a\\\"b\\\\c\\nd\",queue=\"1\"} 5\n");
    }

    #[test]
    fn the_buckets_go_from_a_microsecond_to_ten_seconds() {
        assert_eq!((BUCKETS_NS[0], BUCKETS_NS[4], BUCKETS_NS[21]), (1_000, 20_000, 10_000_000_000));
    }
}
