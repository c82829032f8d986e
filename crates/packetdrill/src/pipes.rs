//! Pipes, for `splice`: bytes between two file numbers.

use std::collections::{BTreeMap, VecDeque};

use crate::errno::{AGAIN, Errno, INVALID, Result};
use crate::machine::Machine;
use crate::sockets::{Kind, Socket};

/// Linux's size of a pipe.
const ROOM: usize = 65_536;

/// One end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PipeEnd {
    number: u32,
    writes: bool,
}

#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    read_closed: bool,
    write_closed: bool,
    /// How often each end had cause to look: the reader at each write, the writer when there is room again.
    readable: u64,
    roomy: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Pipes {
    all: BTreeMap<u32, Pipe>,
    next: u32,
}

impl Pipes {
    fn open(&mut self) -> (PipeEnd, PipeEnd) {
        self.next += 1;
        self.all.insert(self.next, Pipe::default());
        let end = |writes| PipeEnd { number: self.next, writes };
        (end(false), end(true))
    }

    fn get(&mut self, end: PipeEnd, writes: bool) -> Result<&mut Pipe> {
        self.all.get_mut(&end.number).filter(|_| end.writes == writes).ok_or(Errno(libc::EBADF))
    }

    pub(crate) fn read(&mut self, end: PipeEnd, parts: &mut [&mut [u8]]) -> Result<usize> {
        let pipe = self.get(end, false)?;
        let full = pipe.bytes.len() == ROOM;
        let mut n = 0;
        for place in parts.iter_mut().flat_map(|part| part.iter_mut()) {
            let Some(byte) = pipe.bytes.pop_front() else { break };
            *place = byte;
            n += 1;
        }
        pipe.roomy += u64::from(full && n > 0);
        if n == 0 && !pipe.write_closed { Err(AGAIN) } else { Ok(n) }
    }

    pub(crate) fn write(&mut self, end: PipeEnd, bytes: &[u8]) -> Result<usize> {
        let pipe = self.get(end, true)?;
        if pipe.read_closed {
            return Err(Errno(libc::EPIPE));
        }
        let n = bytes.len().min(ROOM - pipe.bytes.len());
        pipe.bytes.extend(&bytes[..n]);
        pipe.readable += u64::from(n > 0);
        if n == 0 && !bytes.is_empty() { Err(AGAIN) } else { Ok(n) }
    }

    /// Bytes that can be read, and room for more.
    pub(crate) fn fill(&self, end: PipeEnd) -> (usize, usize) {
        self.all.get(&end.number).map_or((0, 0), |pipe| (pipe.bytes.len(), ROOM - pipe.bytes.len()))
    }

    pub(crate) fn other_end_closed(&self, end: PipeEnd) -> bool {
        let closed = |pipe: &Pipe| if end.writes { pipe.read_closed } else { pipe.write_closed };
        self.all.get(&end.number).is_none_or(closed)
    }

    /// How often this end had cause to look.
    pub(crate) fn activity(&self, end: PipeEnd) -> u64 {
        self.all.get(&end.number).map_or(0, |pipe| if end.writes { pipe.roomy } else { pipe.readable })
    }

    pub(crate) fn close(&mut self, end: PipeEnd) {
        let Some(pipe) = self.all.get_mut(&end.number) else { return };
        pipe.readable += 1;
        pipe.roomy += 1;
        if end.writes {
            pipe.write_closed = true
        } else {
            pipe.read_closed = true
        }
        if pipe.read_closed && pipe.write_closed {
            self.all.remove(&end.number);
        }
    }
}

impl PipeEnd {
    pub(crate) fn writes(self) -> bool {
        self.writes
    }
}

impl Machine {
    pub(crate) fn pipe(&mut self) -> Result<(i32, i32)> {
        let (read, write) = self.sockets.pipes.open();
        let limits = self.flags.limits();
        let read = self.sockets.add(Socket::new(Kind::Pipe(read), false, limits))?;
        Ok((read, self.sockets.add(Socket::new(Kind::Pipe(write), false, limits))?))
    }

    /// Moves at most `n` bytes from one file number to another; one of them is a pipe. Nothing is taken that the other
    /// has no room for.
    pub(crate) fn splice(&mut self, from: i32, to: i32, n: usize) -> Result<usize> {
        if n == 0 {
            return Ok(0);
        }
        let end = |kind: &Kind| if let Kind::Pipe(end) = kind { Some(*end) } else { None };
        let (source, sink) = (end(&self.sockets.get(from)?.kind), end(&self.sockets.get(to)?.kind));
        if source.is_some_and(PipeEnd::writes) || sink.is_some_and(|end| !end.writes()) {
            return Err(Errno(libc::EBADF));
        }
        if source.zip(sink).is_some_and(|(source, sink)| source.number == sink.number) {
            return Err(INVALID);
        }
        let room = match (&self.sockets.get(from)?.kind, &self.sockets.get(to)?.kind) {
            (_, Kind::Pipe(end)) => self.sockets.pipes.fill(*end).1,
            (Kind::Pipe(_), Kind::Stream(id)) => self.host.stack.send_room(*id).unwrap_or(0),
            _ => return Err(INVALID),
        };
        let source = self.sockets.get(from)?;
        if let Kind::Stream(id) = source.kind
            && self.out_of_band(source, id) == Some(0)
        {
            // Linux stops at the urgent byte, for good.
            return Ok(0);
        }
        let n = n.min(room).min(ROOM);
        if n == 0 {
            return Err(AGAIN);
        }
        let mut bytes = vec![0; n];
        let mut done = 0;
        let n = match self.receive(from, &mut [&mut bytes], 0, &mut done) {
            Err(AGAIN) if done > 0 => done,
            result => result?.n,
        };
        if n == 0 { Ok(0) } else { self.send(to, &bytes[..n], 0, None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Flags;

    #[test]
    fn nothing_is_moved_at_once_where_nothing_is_asked_for() {
        let mut machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let (_, write) = machine.pipe().unwrap();
        assert_eq!(machine.splice(write, write, 0), Ok(0));
    }
}
