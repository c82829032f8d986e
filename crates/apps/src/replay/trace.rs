//! A capture file's packets, ready to be sent: all of them in memory, or a few pieces ahead of the sender.
//!
//! What can take long or fail, reading and rewriting, is done before a packet is due: at the start where the file is
//! small enough, else by a thread that reads ahead. The sender copies bytes that are in memory, whatever the disk does.
//! Of a pipe it gets what is there, and the thread waits for more.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use bywash_pcap::{Link, Reader, Record};
use bywash_port::Capabilities;
use bywash_sys::intake::Intake;
use bywash_wire::ETHERNET_HEADER;
use rtrb::{Consumer, Producer, RingBuffer};

use super::rewrite::Rewrite;
use crate::queues::longest_packet;

/// Bytes of packets in a piece, about.
const PIECE: usize = 4 << 20;

/// Packets in a piece, at most: short ones have more overhead than bytes.
const PIECE_PACKETS: usize = 1 << 16;

/// Pieces that the reading thread is ahead.
const AHEAD: usize = 16;

/// Nanoseconds by which a packet may come after a later one: `capture` hands over what came by a queue each tenth of a second, and others
/// do no worse. One that is further behind came when the clock had been set back: what follows is counted from there.
const CLOCK_SET: u64 = 200_000_000;

/// How long it sleeps when it is far enough ahead and nobody wakes it.
const NAP: Duration = Duration::from_millis(20);

/// Where packets come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard input: once.
    Stdin,
    /// A file.
    File(PathBuf),
}

impl Source {
    fn open(&self) -> Result<Reader<Intake>, String> {
        let opened = match self {
            Self::Stdin => Intake::stdin(),
            Self::File(path) => Intake::open(path),
        };
        let intake = opened.map_err(|error| format!("{self} can't be read: {error}"))?;
        Reader::new(intake).map_err(|error| format!("{self}: {error}"))
    }

    /// Its length; `None` when nobody knows.
    fn len(&self) -> Option<u64> {
        match self {
            Self::Stdin => None,
            Self::File(path) => std::fs::metadata(path).ok().filter(|it| it.is_file()).map(|it| it.len()),
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdin => f.write_str("standard input"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// What becomes of packets that are longer than the port takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooLong {
    /// Nothing is sent, or nothing more.
    #[default]
    Refuse,
    /// They are left out, and counted.
    Skip,
    /// Their end is cut off; they are counted.
    Cut,
}

/// A packet in a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Nanoseconds since the first packet of the file; never less than the packet's before.
    pub(super) time: u64,
    /// The block that it begins with.
    pub(super) first: u32,
    pub(super) len: u32,
}

/// Packets lie in whole blocks, the last one filled up with zeros: a short packet is copied by a few moves of known
/// size, without asking how long it is.
pub(super) type Block = [u8; 64];

/// Some packets in a row.
#[derive(Debug, Default)]
pub(super) struct Piece {
    blocks: Vec<Block>,
    pub(super) entries: Vec<Entry>,
    /// Bytes of the longest packet.
    pub(super) longest: usize,
}

impl Piece {
    fn has_room(&self, len: usize) -> bool {
        let bytes = (self.blocks.len() + len.div_ceil(size_of::<Block>())) * size_of::<Block>();
        self.entries.is_empty() || (bytes <= PIECE && self.entries.len() < PIECE_PACKETS)
    }

    fn clear(&mut self) {
        self.blocks.clear();
        self.entries.clear();
        self.longest = 0;
    }

    fn push(&mut self, time: u64, packet: &[u8]) {
        let first = self.blocks.len();
        let (whole, rest) = packet.as_chunks();
        self.blocks.extend_from_slice(whole);
        if !rest.is_empty() {
            let mut last: Block = [0; _];
            last[..rest.len()].copy_from_slice(rest);
            self.blocks.push(last);
        }
        if let (Ok(first), Ok(len)) = (u32::try_from(first), u32::try_from(packet.len())) {
            self.entries.push(Entry { time, first, len });
            self.longest = self.longest.max(packet.len());
        }
    }

    /// The blocks of one of its packets.
    #[inline]
    pub(super) fn blocks(&self, entry: Entry) -> &[Block] {
        let count = (entry.len as usize).div_ceil(size_of::<Block>());
        self.blocks.get(entry.first as usize..).and_then(|rest| rest.get(..count)).unwrap_or(&[])
    }

    /// The bytes of one of its packets.
    #[inline]
    pub(super) fn packet(&self, entry: Entry) -> &[u8] {
        self.blocks(entry).as_flattened().get(..entry.len as usize).unwrap_or(&[])
    }
}

/// What reading a file came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Notes {
    /// Packets to be sent.
    pub(super) packets: u64,
    /// Nanoseconds from the first to the last one.
    pub(super) span: u64,
    /// Packets that were too short to have an Ethernet header.
    pub(super) short: u64,
    /// Packets that were longer than the port takes, left out or cut.
    pub(super) too_long: u64,
    /// Packets of which the file does not have the end.
    pub(super) cut: u64,
    /// Packets whose time is before that of the packet in front.
    pub(super) backwards: u64,
    /// Why the rest of the file was not read.
    pub(super) broken: Option<String>,
}

/// How packets are made ready.
#[derive(Clone, Debug)]
pub(super) struct Preparation {
    pub(super) rewrite: Rewrite,
    /// What the port takes.
    pub(super) capabilities: Capabilities,
    pub(super) too_long: TooLong,
    /// Nanoseconds to which longer gaps are shortened.
    pub(super) max_gap: u64,
}

/// What a piece was filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filled {
    /// The next packets.
    Some,
    /// Nothing, which is what has come.
    NotYet,
    /// Nothing: that was all.
    End,
}

/// A file on its way through.
struct Loader {
    reader: Reader<Intake>,
    preparation: Preparation,
    notes: Notes,
    /// The latest time in the file so far, since its clock was set back.
    latest: Option<u64>,
    packet: Vec<u8>,
    number: u64,
    is_over: bool,
    /// Why nothing behind the packets that were read may be sent.
    failure: Option<String>,
}

impl Loader {
    fn new(source: &Source, preparation: Preparation) -> Result<Self, String> {
        let reader = source.open()?;
        let (notes, packet) = (Notes::default(), Vec::new());
        Ok(Self {
            reader,
            preparation,
            notes,
            latest: None,
            packet,
            number: 0,
            is_over: false,
            failure: None,
        })
    }

    /// Fills a piece with what comes next: as much as there is room for, or has come.
    ///
    /// # Errors
    /// A packet that can't be sent and may not be left out, when all before it were given.
    fn fill(&mut self, piece: &mut Piece) -> Result<Filled, String> {
        piece.clear();
        // A packet that no longer fitted is first.
        if !self.packet.is_empty() {
            self.append(piece, self.notes.span);
        }
        while !self.is_over {
            let record = match self.reader.next_record() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    self.is_over = true;
                    break;
                }
                Err(error) if error.is_for_later() => break,
                Err(error) => {
                    self.notes.broken = Some(error.to_string());
                    self.is_over = true;
                    break;
                }
            };
            self.number += 1;
            let number = self.number;
            let stamp = record.time;
            match prepare(&record, number, &self.preparation, &mut self.notes, &mut self.packet) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(reason) => {
                    self.packet.clear();
                    self.failure = Some(reason);
                    self.is_over = true;
                    break;
                }
            }
            let gap = match stamp.zip(self.latest) {
                Some((time, latest)) if time < latest => {
                    self.notes.backwards += 1;
                    // What comes later than that was not swapped on its way.
                    if latest - time > CLOCK_SET {
                        self.latest = stamp;
                    }
                    0
                }
                Some((time, latest)) => (time - latest).min(self.preparation.max_gap),
                None => 0,
            };
            self.latest = self.latest.max(stamp);
            let time = self.notes.span.saturating_add(gap);
            self.notes.span = time;
            self.notes.packets += 1;
            if !piece.has_room(self.packet.len()) {
                break;
            }
            self.append(piece, time);
        }
        match (piece.entries.is_empty(), self.is_over) {
            (false, _) => Ok(Filled::Some),
            (true, false) => Ok(Filled::NotYet),
            (true, true) => self.failure.take().map_or(Ok(Filled::End), Err),
        }
    }

    fn append(&mut self, piece: &mut Piece, time: u64) {
        piece.push(time, &self.packet);
        self.packet.clear();
    }
}

/// Copies a record's packet, as it is to be sent; false when it is left out.
fn prepare(
    record: &Record<'_>,
    number: u64,
    preparation: &Preparation,
    notes: &mut Notes,
    packet: &mut Vec<u8>,
) -> Result<bool, String> {
    packet.clear();
    if record.link != Link::ETHERNET {
        return Err(format!("packet {number} begins with {}, and only Ethernet can be sent", record.link));
    }
    if record.bytes.len() < ETHERNET_HEADER {
        notes.short += 1;
        return Ok(false);
    }
    notes.cut += u64::from(record.is_cut());
    packet.extend_from_slice(record.bytes);
    preparation.rewrite.apply(packet, record.is_cut());
    let max = longest_packet(&preparation.capabilities, packet);
    if packet.len() > max {
        notes.too_long += 1;
        match preparation.too_long {
            TooLong::Refuse => {
                return Err(format!(
                    "packet {number} has {} bytes and the port takes at most {max}: leave such out with \
                     --too-long skip, or cut them with --too-long cut",
                    packet.len()
                ));
            }
            TooLong::Skip => {
                packet.clear();
                return Ok(false);
            }
            TooLong::Cut => packet.truncate(max),
        }
    }
    Ok(true)
}

/// A file's packets, over and over.
pub(super) enum Trace {
    /// All in memory.
    Loaded {
        /// In order.
        pieces: Vec<Piece>,
        /// What they came to.
        notes: Notes,
        /// The piece that is next.
        next: usize,
    },
    /// Read by a thread a few pieces ahead.
    Streamed(Stream),
}

/// What the sender works on.
pub(super) enum Next<'a> {
    /// These packets, and whether they are the first ones of the file.
    Piece(&'a Piece, bool),
    /// They are not read yet.
    Wait,
    /// That was all.
    End,
}

impl Trace {
    /// Reads `source` into memory when it has at most `preload` bytes, else begins to read ahead.
    pub(super) fn open(
        source: &Source,
        preparation: Preparation,
        preload: u64,
        loops: Option<u64>,
    ) -> Result<Self, String> {
        let mut loader = Loader::new(source, preparation.clone())?;
        let len = source.len();
        if len.is_none_or(|len| len > preload) {
            return Stream::start(source.clone(), loader, preparation, (loops, len.is_none()))
                .map(Self::Streamed);
        }
        let mut pieces = Vec::new();
        loop {
            let mut piece = Piece::default();
            if loader.fill(&mut piece).map_err(|reason| format!("{source}: {reason}"))? != Filled::Some {
                break;
            }
            piece.blocks.shrink_to_fit();
            pieces.push(piece);
        }
        Ok(Self::Loaded { pieces, notes: loader.notes, next: 0 })
    }

    /// The piece to send from. [`Trace::advance`] goes on to the one after it.
    #[inline]
    pub(super) fn piece(&mut self) -> Next<'_> {
        match self {
            Self::Loaded { pieces, next, .. } => {
                pieces.get(*next).map_or(Next::End, |piece| Next::Piece(piece, *next == 0))
            }
            Self::Streamed(stream) => stream.piece(),
        }
    }

    /// Goes on to the next piece. After the last one it begins again; whoever counts loops knows when to stop.
    pub(super) fn advance(&mut self) {
        match self {
            Self::Loaded { pieces, next, .. } => {
                *next = if *next + 1 == pieces.len() { 0 } else { *next + 1 }
            }
            Self::Streamed(stream) => stream.advance(),
        }
    }

    /// What the file came to, as far as it has been read: once that was to its end, the last time it was.
    pub(super) fn notes(&self) -> Notes {
        match self {
            Self::Loaded { notes, .. } => notes.clone(),
            Self::Streamed(stream) => {
                stream.shared.lock().unwrap_or_else(PoisonError::into_inner).notes.clone()
            }
        }
    }

    /// Why reading failed, which nobody could know before.
    pub(super) fn failure(&self) -> Option<String> {
        match self {
            Self::Loaded { .. } => None,
            Self::Streamed(stream) => {
                stream.shared.lock().unwrap_or_else(PoisonError::into_inner).failure.clone()
            }
        }
    }

    /// Whether it may take any time until it is known what comes next.
    pub(super) fn is_pipe(&self) -> bool {
        matches!(self, Self::Streamed(Stream { is_pipe: true, .. }))
    }

    /// Whether the file is in memory.
    pub(super) fn is_loaded(&self) -> bool {
        matches!(self, Self::Loaded { .. })
    }
}

/// What the reading thread tells.
#[derive(Debug, Default)]
struct Shared {
    notes: Notes,
    failure: Option<String>,
}

/// A piece on its way, and whether it is the first one of a file.
type Sent = (Piece, bool);

/// A thread that reads ahead.
pub(super) struct Stream {
    full: Consumer<Sent>,
    free: Producer<Piece>,
    current: Option<Sent>,
    is_pipe: bool,
    thread: Thread,
    shared: Arc<Mutex<Shared>>,
    /// Ends by itself when this end of the rings is dropped.
    _thread: JoinHandle<()>,
}

impl Stream {
    fn start(
        source: Source,
        loader: Loader,
        preparation: Preparation,
        (loops, is_pipe): (Option<u64>, bool),
    ) -> Result<Self, String> {
        let (full_end, full) = RingBuffer::new(AHEAD);
        let (mut free, free_end) = RingBuffer::new(AHEAD);
        for _ in 0..AHEAD {
            // The ring has a place for each.
            let _ = free.push(Piece::default());
        }
        let shared = Arc::new(Mutex::new(Shared::default()));
        let told = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("reader".into())
            .spawn(move || {
                let mut ahead = Ahead { full: full_end, free: free_end, spare: None, shared: told };
                ahead.run(&source, loader, &preparation, loops);
            })
            .map_err(|error| format!("no thread for reading: {error}"))?;
        let handle = thread.thread().clone();
        Ok(Self { full, free, current: None, is_pipe, thread: handle, shared, _thread: thread })
    }

    #[inline]
    fn piece(&mut self) -> Next<'_> {
        if self.current.is_none() {
            // Asked before the ring is looked at: what was put in before is seen then.
            let is_over = self.full.is_abandoned();
            self.current = self.full.pop().ok();
            if self.current.is_none() && is_over {
                return Next::End;
            }
        }
        match &self.current {
            Some((piece, is_first)) => Next::Piece(piece, *is_first),
            None => Next::Wait,
        }
    }

    fn advance(&mut self) {
        if let Some((piece, _)) = self.current.take() {
            let _ = self.free.push(piece);
            self.thread.unpark();
        }
    }
}

/// The reading thread's side.
struct Ahead {
    full: Producer<Sent>,
    free: Consumer<Piece>,
    /// A piece that was left unused: the file had ended, or no more had come.
    spare: Option<Piece>,
    shared: Arc<Mutex<Shared>>,
}

impl Ahead {
    /// Reads the file so many times, or until nobody wants it any more.
    fn run(&mut self, source: &Source, first: Loader, preparation: &Preparation, loops: Option<u64>) {
        let mut loader = first;
        for turn in 1.. {
            match self.file(&mut loader, turn == 1) {
                Ok(true) if loops.is_none_or(|loops| turn < loops) => {}
                Ok(_) => return,
                Err(reason) => return self.fail(format!("{source}: {reason}")),
            }
            loader = match Loader::new(source, preparation.clone()) {
                Ok(loader) => loader,
                Err(reason) => return self.fail(reason),
            };
        }
    }

    /// Reads the file once; false when nobody wants it any more, or there is nothing in it. When it is not for the first time,
    /// what it came to is not told before it is over: the reading before had come to its end.
    fn file(&mut self, loader: &mut Loader, is_first_time: bool) -> Result<bool, String> {
        let mut is_first = true;
        loop {
            let mut piece = loop {
                if let Some(piece) = self.spare.take().or_else(|| self.free.pop().ok()) {
                    break piece;
                }
                if self.free.is_abandoned() {
                    return Ok(false);
                }
                std::thread::park_timeout(NAP);
            };
            let filled = loader.fill(&mut piece);
            if is_first_time || loader.is_over {
                self.shared.lock().unwrap_or_else(PoisonError::into_inner).notes = loader.notes.clone();
            }
            match filled? {
                Filled::Some => {
                    // There are no more pieces than the ring has places.
                    let _ = self.full.push((piece, is_first));
                    is_first = false;
                }
                Filled::NotYet => {
                    self.spare = Some(piece);
                    if self.free.is_abandoned() {
                        return Ok(false);
                    }
                    loader.reader.source().wait(NAP);
                }
                Filled::End => {
                    self.spare = Some(piece);
                    return Ok(!is_first);
                }
            }
        }
    }

    fn fail(&self, reason: String) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).failure = Some(reason);
    }
}

#[cfg(test)]
mod tests;
