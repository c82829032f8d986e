//! What of a port can go for good while it is open, and how that is told.

use std::fmt::Display;

use crate::Counter;

/// What has gone. No packet comes by the port again, whatever comes in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The interface: it was deleted, or moved to another network namespace.
    Interface,
    /// The way by which packets go back into the interface.
    WayBack,
    /// A program in the kernel: somebody else has detached it.
    Program,
    /// Who read the pipe that packets are written to. Nothing is wrong then.
    Reader,
    /// The file that packets are written to: its disk is full, or broken.
    File,
}

/// Each with the counter by which drivers tell it.
const TOLD: [(&str, Gone); 5] = [
    ("interface_gone", Gone::Interface),
    ("way_back_gone", Gone::WayBack),
    ("program_gone", Gone::Program),
    ("reader_gone", Gone::Reader),
    ("file_ended", Gone::File),
];

/// What of a port has gone, by what it has counted.
pub fn has_gone(counters: &[Counter]) -> Option<Gone> {
    let set = |name| counters.iter().any(|counter| counter.name == name && counter.value > 0);
    TOLD.into_iter().find_map(|(name, gone)| set(name).then_some(gone))
}

impl Gone {
    /// In a sentence about the port of this name.
    pub fn of(self, port: impl Display) -> String {
        match self {
            Self::Interface => format!("the interface of {port} is gone"),
            Self::WayBack => format!("the way back into the interface of {port} is down or gone"),
            Self::Program => format!("a program of {port} was detached by somebody else"),
            Self::Reader => format!("nobody reads {port} any more"),
            Self::File => format!("no more can be written to {port}"),
        }
    }
}
