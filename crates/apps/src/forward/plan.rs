//! Which queue's packets go to which: every queue of every port gets its worker and its exit.
//!
//! A TX queue has one worker, and what a worker receives it sends itself. So each direction is served by as many
//! workers as have a TX queue for it, and its RX queues are dealt out to them in turn.

use bywash_port::frame::Arena;
use bywash_port::{Port, QueuePair, RxQueue, TxQueue};

use super::worker::{Entrance, Exit, Forwarder};
use super::{Direction, Options, Pair};
use crate::session::close_queues;

/// The workers' tasks, and the directions they serve.
pub(super) struct Plan {
    pub(super) directions: Vec<Direction>,
    pub(super) tasks: Vec<Forwarder>,
}

/// Deals out the queues of `pairs`.
///
/// # Errors
/// Why the ports, the options and the memory don't go together. The queues are closed then.
pub(super) fn plan(pairs: &mut [Pair], options: &Options, arena: &'static Arena) -> Result<Plan, String> {
    let mut sides: Vec<Vec<Side>> =
        pairs.iter_mut().map(|pair| pair.ports_mut().map(|port| Side::of(&mut **port)).collect()).collect();
    let tasks = deal(&mut sides, options, arena);
    let unused = sides.into_iter().flatten().flat_map(Side::into_queues);
    match tasks {
        Ok(mut plan) => {
            // A queue that receives and that nobody looks at would swallow what the kernel could have had.
            let mut pool = arena.pool(0).map_err(|e| e.to_string())?;
            for QueuePair { rx, tx } in unused {
                close_queues([QueuePair { rx, tx: None }], &mut pool);
                if let Some(first) = plan.tasks.first_mut() {
                    first.keep(QueuePair { rx: None, tx });
                }
            }
            Ok(plan)
        }
        Err(reason) => {
            let mut pool = arena.pool(0).map_err(|e| e.to_string())?;
            close_queues(unused, &mut pool);
            Err(reason)
        }
    }
}

/// The queues of one port that are not dealt out yet.
struct Side {
    name: String,
    rx: Vec<(usize, Box<dyn RxQueue>)>,
    tx: Vec<(usize, Box<dyn TxQueue>)>,
}

impl Side {
    fn of(port: &mut dyn Port) -> Self {
        let mut side = Self { name: port.name().to_string(), rx: Vec::new(), tx: Vec::new() };
        for (number, QueuePair { rx, tx }) in port.queues().into_iter().enumerate() {
            side.rx.extend(rx.map(|rx| (number, rx)));
            side.tx.extend(tx.map(|tx| (number, tx)));
        }
        side
    }

    fn into_queues(self) -> impl Iterator<Item = QueuePair> {
        let rx = self.rx.into_iter().map(|(_, rx)| QueuePair { rx: Some(rx), tx: None });
        rx.chain(self.tx.into_iter().map(|(_, tx)| QueuePair { rx: None, tx: Some(tx) }))
    }
}

/// From which side to which of a pair.
type Route = (usize, usize);

/// The directions in which something can be forwarded.
fn routes(pair: &[Side]) -> Result<Vec<Route>, String> {
    let both: &[Route] = if pair.len() == 1 { &[(0, 0)] } else { &[(0, 1), (1, 0)] };
    let works = |&&(from, to): &&Route| !pair[from].rx.is_empty() && !pair[to].tx.is_empty();
    let routes: Vec<Route> = both.iter().filter(works).copied().collect();
    if routes.is_empty() {
        let names: Vec<&str> = pair.iter().map(|side| side.name.as_str()).collect();
        return Err(format!("{}: one must receive and the other send", names.join(" and ")));
    }
    Ok(routes)
}

fn deal(sides: &mut [Vec<Side>], options: &Options, arena: &'static Arena) -> Result<Plan, String> {
    let routes: Vec<Vec<Route>> = sides.iter().map(|pair| routes(pair)).collect::<Result<_, _>>()?;
    let mut most = 0;
    for (pair, routes) in sides.iter().zip(&routes) {
        let widths = routes.iter().map(|&(from, to)| pair[from].rx.len().min(pair[to].tx.len()));
        most += widths.max().unwrap_or(0);
    }
    let workers = options.workers.count(most)?;
    let share = options.workers.frames.unwrap_or(arena.unused() / workers);
    let mut pools =
        (0..workers).map(|_| arena.pool(share)).collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    let mut hands: Vec<Hand> = (0..workers).map(|_| Hand::default()).collect();
    let mut directions = Vec::new();
    let mut first = 0;
    for (pair, routes) in sides.iter_mut().zip(routes) {
        // The next pair begins at the worker after this one's, so that all have something to do.
        hands.rotate_left(first);
        first = 0;
        for (from, to) in routes {
            first =
                first.max(assign(pair, (from, to), directions.len(), options.batch, &mut hands) % workers);
            directions.push(Direction { from: pair[from].name.clone(), to: pair[to].name.clone() });
        }
    }
    let tasks = hands.into_iter().zip(pools.drain(..));
    Ok(Plan {
        directions,
        tasks: tasks
            .map(|(hand, pool)| Forwarder::new(hand.entrances, hand.exits, pool, options.edit))
            .collect(),
    })
}

/// The queues of one worker.
#[derive(Default)]
struct Hand {
    entrances: Vec<Entrance>,
    exits: Vec<Exit>,
}

/// Deals out the queues of one direction and returns how many workers it has now.
fn assign(pair: &mut [Side], (from, to): Route, direction: usize, batch: usize, hands: &mut [Hand]) -> usize {
    let width = hands.len().min(pair[to].tx.len()).min(pair[from].rx.len());
    let mut exits = Vec::with_capacity(width);
    for ((number, tx), hand) in pair[to].tx.drain(..width).zip(hands.iter_mut()) {
        exits.push(hand.exits.len());
        hand.exits.push(Exit::new(tx, batch, number, direction));
    }
    for (index, (number, rx)) in pair[from].rx.drain(..).enumerate() {
        let worker = index % width;
        hands[worker].entrances.push(Entrance { rx, exit: exits[worker], number, direction });
    }
    width
}
