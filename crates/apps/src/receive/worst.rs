//! The table of flows: the worst ones first, of those that are as good the largest ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::events::{DAMAGED, DUPLICATE, LOST, REORDERED};
use super::flows::{Flow, Key};
use super::sequence::Counts;
use super::share::Ends;
use super::worker::Figures;
use crate::rate::Traffic;
use crate::report::{Column, Metric, Row, Table};

/// What came of a flow by all streams and queues.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    traffic: Traffic,
    /// `None` when nobody numbers its packets.
    lost: Option<u64>,
    reordered: u64,
    duplicates: u64,
    damaged: u64,
}

const FLOW: &[Column<Known>] = &[
    Column {
        metric: Metric::packets("packets", "packets", "Packets of the flow that came, copies too"),
        of: |known| known.traffic.packets,
    },
    Column {
        metric: Metric::bytes("bytes", "bytes", "Their bytes, without FCS"),
        of: |known| known.traffic.bytes,
    },
];

const JUDGED: &[Column<Known>] = &[
    Column { metric: REORDERED, of: |known| known.reordered },
    Column { metric: DUPLICATE, of: |known| known.duplicates },
    Column { metric: DAMAGED, of: |known| known.damaged },
];

impl Known {
    /// Adds what came of it by one stream. `lost` is `None` when that is not known.
    fn add(&mut self, flow: &Flow, lost: Option<u64>) {
        self.traffic += flow.traffic;
        self.lost = lost.map(|lost| self.lost.unwrap_or(0).saturating_add(lost)).or(self.lost);
        self.reordered += flow.counts.reordered;
        self.duplicates += flow.counts.duplicates;
        self.damaged += flow.damaged;
    }

    fn faults(&self) -> u64 {
        self.lost.unwrap_or(0).saturating_add(self.reordered + self.duplicates + self.damaged)
    }

    fn row(&self, name: &str) -> Row {
        let mut row = Row::new(vec![("flow", name.into())], FLOW, self);
        row.values.extend(self.lost.map(|lost| (LOST, lost)));
        row.and(JUDGED, self)
    }
}

/// What was lost of these streams; `None` while the workers' figures are not of one moment.
fn lost_of(streams: &BTreeSet<u16>, ends: &Ends) -> Option<u64> {
    let ends = ends.of_all()?;
    Some(streams.iter().filter_map(|id| ends.get(id)).map(Counts::lost).fold(0, u64::saturating_add))
}

/// The `most` worst flows, put together from all queues, and last what all others had.
pub(super) fn flows(figures: &[Figures], most: usize) -> Table {
    let mut parts = BTreeMap::<(Key, Option<u16>), (Flow, u64)>::new();
    for worker in figures {
        for flow in &worker.flows {
            let part = parts.entry((flow.key, flow.stream));
            part.and_modify(|(known, at)| {
                known.merge(flow);
                *at = worker.parts_at.min(*at);
            })
            .or_insert((*flow, worker.parts_at));
        }
    }
    let ends = Ends::of(figures);
    let (mut flows, mut numbered) = (BTreeMap::<Key, Known>::new(), BTreeSet::new());
    for ((key, stream), (flow, at)) in &parts {
        let lost = stream.and_then(|stream| flow.lost(ends.of_stream(*at, stream)?));
        numbered.extend(stream.filter(|_| lost.is_some()));
        flows.entry(*key).or_default().add(flow, lost);
    }
    let mut flows: Vec<(Key, Known)> = flows.into_iter().collect();
    flows.sort_by_key(|(_, known)| Reverse((known.faults(), known.traffic.packets)));
    let rest = flows.split_off(most.min(flows.len()));
    let mut others = Known::default();
    for (_, Known { traffic, reordered, duplicates, damaged, .. }) in rest {
        others.traffic += traffic;
        others.reordered += reordered;
        others.duplicates += duplicates;
        others.damaged += damaged;
    }
    others.traffic += figures.iter().fold(Traffic::default(), |sum, worker| sum + worker.other_flows);
    // Also those of flows of which nothing came at all.
    let shown = flows.iter().filter_map(|(_, known)| known.lost).fold(0, u64::saturating_add);
    others.lost =
        lost_of(&numbered, &ends).map(|lost| lost.saturating_sub(shown)).filter(|_| !numbered.is_empty());
    let mut rows: Vec<Row> = flows.iter().map(|(key, known)| known.row(&key.to_string())).collect();
    let has_rest = others.traffic.packets > 0 || others.faults() > 0;
    if has_rest {
        rows.push(others.row("others"));
    }
    Table { in_metrics: false, partial: true, has_rest, ..Table::new("flows", "flow", 0, rows) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_whoever_sends_makes_up_are_no_metrics() {
        let one = Traffic { packets: 1, bytes: 60 };
        let table = flows(&[Figures { other_flows: one, ..Figures::default() }], 1);
        assert_eq!(
            (table.in_metrics, table.partial, table.has_rest, table.rows.len()),
            (false, true, true, 1)
        );
    }
}
