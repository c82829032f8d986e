//! Connections that have something to send, and wait until a port takes packets: a line for each port.

use std::collections::VecDeque;

use crate::PortId;

/// Numbers of connections, each in one line at most.
#[derive(Debug, Default)]
pub(super) struct Parked {
    lines: Vec<(PortId, VecDeque<u32>)>,
}

impl Parked {
    pub(super) fn push(&mut self, port: PortId, connection: u32) {
        match self.line(port) {
            Some(line) => line.push_back(connection),
            None => self.lines.push((port, VecDeque::from([connection]))),
        }
    }

    /// Takes the one that has waited longest, in the line of any port that `has_room`.
    pub(super) fn pop(&mut self, has_room: impl Fn(PortId) -> bool) -> Option<u32> {
        let mut lines = self.lines.iter_mut().filter(|(port, _)| has_room(*port));
        lines.find_map(|(_, line)| line.pop_front())
    }

    /// Whether somebody waits for a port that `has_room`.
    pub(super) fn has_any(&self, has_room: impl Fn(PortId) -> bool) -> bool {
        self.lines.iter().any(|(port, line)| !line.is_empty() && has_room(*port))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.lines.iter().map(|(_, line)| line.len()).sum()
    }

    /// Moves all of them to another line.
    pub(super) fn leave(&mut self, to: &mut VecDeque<u32>) {
        self.lines.iter_mut().for_each(|(_, line)| to.append(line));
    }

    fn line(&mut self, port: PortId) -> Option<&mut VecDeque<u32>> {
        self.lines.iter_mut().find(|(of, _)| *of == port).map(|(_, line)| line)
    }
}
