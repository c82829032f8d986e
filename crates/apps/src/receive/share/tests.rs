//! What each queue lost, against sets of what came.

use bywash_port::QueueCounters;
use proptest::prelude::*;

use super::super::streams::Streams;
use super::super::worker::{Kinds, QueueFigures};
use super::*;

/// What queues show of their streams, as one worker's.
fn figures(queues: &[Streams]) -> Figures {
    let mut figures = Figures::default();
    for (number, streams) in queues.iter().enumerate() {
        let (counters, kinds) = (QueueCounters::default(), Kinds::default());
        figures.queues.push(QueueFigures { number, counters, kinds });
        streams.publish(number, &mut figures.parts, &mut figures.came);
    }
    figures
}

/// What each of two queues lost, which got these numbers of stream 9 with so many flows in turn.
fn lost_of(turns: u16, queues: [&[u32]; 2]) -> [Option<u64>; 2] {
    let queues = queues.map(|numbers| {
        let mut streams = Streams::new(true);
        for number in numbers {
            streams.note(9, turns, *number);
        }
        streams
    });
    let lost = lost_by_queue(&[figures(&queues)]);
    [0, 1].map(|queue| lost.get(&queue).copied())
}

#[test]
fn a_queue_has_lost_what_its_flows_miss() {
    assert_eq!(lost_of(2, [&[0, 2, 6], &[1, 3, 5, 7]]), [Some(1), Some(0)]);
    assert_eq!(lost_of(2, [&[0, 2], &[1, 3, 5, 7]]), [Some(2), Some(0)], "also behind its last packet");
    assert_eq!(lost_of(1, [&[0, 5], &[]]), [Some(4), Some(0)]);
    assert_eq!(lost_of(3, [&[0, 6], &[1, 4, 7]]), [Some(1), Some(0)], "one flow came by none");
    assert_eq!(lost_of(100, [&[0, 99, 100, 300], &[1, 98, 298]]), [Some(3), Some(3)], "over several words");
}

#[test]
fn what_came_by_two_queues_or_without_turns_is_no_queues() {
    assert_eq!(lost_of(2, [&[0, 2, 3, 6], &[1, 5, 7]]), [None; 2]);
    assert_eq!(lost_of(0, [&[0, 2, 6], &[1, 3]]), [None; 2]);
    let across = lost_of(2, [&[0xffff_fffe, 0, 4], &[0xffff_ffff, 1, 3]]);
    assert_eq!(across, [Some(1), Some(0)], "the numbers wrap");
    assert_eq!(
        lost_of(3, [&[0xffff_ffff, 2], &[0, 3]]),
        [None; 2],
        "one began before the wrap, one behind it"
    );
    let mut streams = Streams::new(true);
    streams.note(9, 2, 0);
    streams.note(9, 3, 5);
    let other = Streams::new(true);
    assert_eq!(
        lost_by_queue(&[figures(&[streams, other])]),
        BTreeMap::from([(1, 0)]),
        "two senders of one stream"
    );
}

#[test]
fn streams_beyond_the_room_for_turns_have_no_shares() {
    let mut streams = Streams::new(true);
    for id in 0..6 {
        streams.note(id, u16::MAX, 7);
        streams.note(id, u16::MAX, 9);
    }
    let lost = |streams: &Streams, id| {
        let mut figures = figures(std::slice::from_ref(streams));
        figures.parts.retain(|part| part.stream == id);
        lost_by_queue(&[figures]).get(&0).copied()
    };
    assert_eq!([0, 3, 4, 5].map(|id| lost(&streams, id)), [Some(0), Some(0), None, None]);
    // One that changes gives nothing back.
    streams.note(0, 1, 10);
    streams.note(9, 1, 10);
    assert_eq!([0, 9].map(|id| lost(&streams, id)), [None; 2]);
}

#[test]
fn damaged_packets_have_come_where_their_flows_come() {
    let mut queues = [Streams::new(true), Streams::new(true)];
    for number in 0..10 {
        queues[number as usize % 2].note(9, 2, number);
    }
    // One came by the right queue, two by the wrong one, one of those twice.
    for (queue, number) in [(0, 10), (0, 11), (1, 12), (1, 12)] {
        queues[queue].note_damaged(9, number);
    }
    queues[1].note(9, 2, 13);
    assert_eq!(lost_by_queue(&[figures(&queues)]), BTreeMap::from([(0, 1), (1, 1)]));
}

#[test]
fn a_worker_that_published_earlier_is_compared_with_what_was_then() {
    let mut early = Streams::new(true);
    early.note(9, 2, 0);
    let mut late = Streams::new(true);
    for number in [1, 3, 5, 7] {
        late.note(9, 2, number);
    }
    let mut workers = [early, late].map(|streams| figures(&[Streams::new(true), streams]));
    for (number, worker) in workers.iter_mut().enumerate() {
        worker.queues.remove(0);
        worker.queues[0].number = number;
        worker.parts.iter_mut().for_each(|part| part.queue = number);
        worker.parts_at = 1 + number as u64;
    }
    assert_eq!(lost_by_queue(&workers), BTreeMap::from([(0, 0), (1, 0)]));
    workers[0].parts_at = 2;
    assert_eq!(lost_by_queue(&workers), BTreeMap::from([(0, 3), (1, 0)]));
}

#[test]
fn what_one_worker_has_seen_later_than_another_is_not_lost() {
    let mut queues = [Streams::new(true), Streams::new(true)];
    for number in [0, 1, 2, 3, 6] {
        queues[number as usize % 2].note(9, 2, number);
    }
    let mut workers = queues.map(|streams| figures(&[streams]));
    let mut lost = Lost::new(true);
    lost.look(&workers);
    assert_eq!((lost.of(9), lost.of_all()), (Some(2), 2));
    // One has gone on: what the other has received meanwhile is not shown yet.
    let mut later = Streams::new(true);
    for n in 0..50 {
        later.note(9, 2, 2 * n);
    }
    workers[0] = Figures { parts_at: 1, ..figures(&[later]) };
    lost.look(&workers);
    assert_eq!((lost.of(9), lost.of_all()), (Some(2), 2));
    let mut later = Streams::new(true);
    for n in 0..48 {
        later.note(9, 2, 2 * n + 1);
    }
    workers[1] = Figures { parts_at: 1, ..figures(&[later]) };
    lost.look(&workers);
    assert_eq!((lost.of(9), lost.of_all()), (Some(1), 1), "some came late");
}

proptest! {
    /// Flows in turn, dealt to three queues, some packets in runs that are noted at once; some are lost, some come late.
    #[test]
    fn loss_is_of_the_queue_that_has_the_flow(
        first in prop_oneof![0_u32..1000, 0xf000_0000_u32..0xf800_0000],
        turns in prop_oneof![1_u16..10, 60_u16..200],
        deal in prop::collection::vec(0_usize..3, 200),
        fates in prop::collection::vec(0_u8..10, 1..1500),
    ) {
        let mut queues = [(); 3].map(|()| Streams::new(true));
        let turn_of = |n: u32| (n % u32::from(turns)) as usize;
        let mut came = [(); 3].map(|()| Vec::new());
        let mut late = None;
        let mut highest = [None; 3];
        for (n, fate) in (first..).zip(&fates) {
            let queue = deal[turn_of(n)];
            if *fate == 0 {
                continue;
            }
            came[queue].push(n);
            if *fate == 1 && late.is_none() {
                late = Some((n, queue));
                continue;
            }
            if highest[queue] == n.checked_sub(1) && n > 0 {
                queues[queue].note_next(9, 1);
            } else {
                queues[queue].note(9, turns, n);
            }
            highest[queue] = Some(n);
            if *fate == 2 && let Some((n, queue)) = late.take() {
                queues[queue].note(9, turns, n);
                highest[queue] = highest[queue].max(Some(n));
            }
        }
        if let Some((n, queue)) = late {
            queues[queue].note(9, turns, n);
        }
        let all: Vec<u32> = came.iter().flatten().copied().collect();
        let span = all.iter().min().copied().unwrap_or(1)..=all.iter().max().copied().unwrap_or(0);
        let lost_by = lost_by_queue(&[figures(&queues)]);
        for (queue, numbers) in came.iter().enumerate() {
            let turns: std::collections::HashSet<usize> = numbers.iter().map(|n| turn_of(*n)).collect();
            let expected = span.clone().filter(|n| turns.contains(&turn_of(*n))).count();
            let lost = (expected - numbers.len()) as u64;
            prop_assert_eq!(lost_by.get(&queue), Some(&lost));
        }
    }
}
