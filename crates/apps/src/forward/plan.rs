//! Which queue's packets go to which: every queue of every port gets its worker and its exit.
//!
//! A TX queue has one worker, and what a worker receives it sends itself. So each direction is served by as many
//! workers as have a TX queue for it, and its RX queues are dealt out to them in turn.

use bywash_port::Port;
use bywash_port::frame::Arena;

use super::worker::{Entrance, Exit, Files, Forwarder};
use super::{Direction, Options, Pair};
use crate::queues::{Halves, close_unused, pools};
use crate::session::{self, is_file};

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
    let mut names =
        session::names(pairs.iter_mut().flat_map(Pair::ports_mut).map(|port| &**port)).into_iter();
    let mut sides: Vec<Vec<Side>> =
        pairs.iter_mut().map(|pair| pair.ports_mut().zip(&mut names).map(side).collect()).collect();
    let tasks = deal(&mut sides, options, arena);
    let unused = sides.into_iter().flatten().flat_map(|side| side.queues.into_pairs());
    match tasks {
        Ok(mut plan) => {
            // A queue that receives and that nobody looks at would swallow what the kernel could have had.
            let (receiving, sending): (Vec<_>, Vec<_>) = unused.partition(|queue| queue.rx.is_some());
            close_unused(receiving, arena)?;
            if let Some(first) = plan.tasks.first_mut() {
                sending.into_iter().for_each(|queue| first.keep(queue));
            }
            Ok(plan)
        }
        Err(reason) => {
            close_unused(unused, arena)?;
            Err(reason)
        }
    }
}

/// What a port is called, and its queues that are not dealt out yet.
struct Side {
    name: String,
    is_file: bool,
    queues: Halves,
}

fn side((port, name): (&mut Box<dyn Port>, String)) -> Side {
    Side { name, is_file: is_file(&**port), queues: Halves::of(&mut **port) }
}

/// From which side to which of a pair.
type Route = (usize, usize);

/// The directions in which something can be forwarded.
fn routes(pair: &[Side]) -> Result<Vec<Route>, String> {
    let both: &[Route] = if pair.len() == 1 { &[(0, 0)] } else { &[(0, 1), (1, 0)] };
    let works = |&&(from, to): &&Route| !pair[from].queues.rx.is_empty() && !pair[to].queues.tx.is_empty();
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
        let widths =
            routes.iter().map(|&(from, to)| pair[from].queues.rx.len().min(pair[to].queues.tx.len()));
        most += widths.max().unwrap_or(0);
    }
    let workers = options.workers.count(most)?;
    let pools = pools(arena, workers, &options.workers)?;
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
    let tasks = hands.into_iter().zip(pools);
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
    let width = hands.len().min(pair[to].queues.tx.len()).min(pair[from].queues.rx.len());
    let files = Files { from: pair[from].is_file, to: pair[to].is_file };
    let mut exits = Vec::with_capacity(width);
    for ((number, tx), hand) in pair[to].queues.tx.drain(..width).zip(hands.iter_mut()) {
        exits.push(hand.exits.len());
        hand.exits.push(Exit::new(tx, batch, number, direction, files));
    }
    for (index, (number, rx)) in pair[from].queues.rx.drain(..).enumerate() {
        let worker = index % width;
        hands[worker].entrances.push(Entrance { rx, exit: exits[worker], number, direction });
    }
    width
}
