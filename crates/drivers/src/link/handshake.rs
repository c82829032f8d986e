//! What two ends tell each other before the first packet: a greeting each, with their regions, and a word at the end.
//!
//! The one that listens speaks first, and hands over the doorbells too. A greeting is checked before anything is done with
//! it; whoever sends another one is sent away, and whoever sends none is not waited for.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash_sys::region::{self, Region};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair, sockopt,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::layout::{Layout, MAX_QUEUES};
use super::session::{Agreement, Alarm, Doorbell};

/// How long the other end may take for each message.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// First in each message.
const MAGIC: [u8; 8] = *b"bywlink\0";

/// Changes with every change of the layout or of these messages.
const VERSION: u32 = 1;

/// Descriptors in a message: the region, and the doorbells.
const MAX_FDS: usize = MAX_QUEUES as usize + 1;

/// Rings from here to there are possible.
const RINGS: std::ops::RangeInclusive<u32> = 64..=32768;

/// What a message is about.
const GREETING: u32 = 1;
const READY: u32 = 2;
const BUSY: u32 = 3;
const OTHER_QUEUES: u32 = 4;

/// [`Message::flags`]: this end reads.
const RECEIVES: u32 = 1;

/// Every message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Message {
    magic: [u8; 8],
    version: u32,
    about: u32,
    queues: u32,
    ring: u32,
    flags: u32,
    /// Of the sender; in a [`BUSY`] one of the process that it is connected to.
    process: u32,
}

impl Message {
    fn new(about: u32) -> Self {
        Self { magic: MAGIC, version: VERSION, about, process: std::process::id(), ..Self::default() }
    }
}

/// Why two ends do not come together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Both ends are in use.
    Busy {
        /// By this process, and
        one: u32,
        /// by this one.
        other: u32,
    },
    /// They want different numbers of queues.
    Queues(u32),
    /// They are of different versions.
    Version(u32),
    /// It speaks another language.
    Stranger,
    /// It says nothing.
    Silent,
    /// It went away in the middle.
    Left,
    /// It does not keep to the rules.
    Broken(String),
    /// We can't.
    Ours(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { one, other } if one == other => {
                write!(f, "both its ends are in use by process {one}: name another path")
            }
            Self::Busy { one, other } => {
                write!(f, "both its ends are in use, by processes {one} and {other}: name another path")
            }
            Self::Queues(queues) => {
                write!(f, "its other end was opened with {queues} queues: open both alike (--queues)")
            }
            Self::Version(version) => write!(
                f,
                "its other end speaks version {version} of the wire and we speak {VERSION}: use the same bywash on both"
            ),
            Self::Stranger => f.write_str("whoever listens there is no bywash: name another path"),
            Self::Silent => {
                f.write_str("its other end does not answer: is that process stopped? Continue or end it")
            }
            Self::Left => f.write_str("its other end went away while it was opened: try again"),
            Self::Broken(what) => write!(f, "its other end does not keep to the rules: {what}"),
            Self::Ours(what) => f.write_str(what),
        }
    }
}

/// What we bring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// As many as the other end has when `None`.
    pub(super) queues: Option<u16>,
    pub(super) ring: u32,
    /// Whether we read.
    pub(super) receives: bool,
}

/// Speaks first, to somebody who connected.
pub(super) fn host(
    socket: &OwnedFd,
    terms: Terms,
    layout: Layout,
    stop: BorrowedFd<'_>,
) -> Result<Agreement, Refusal> {
    let region = new_region(layout)?;
    let mut doorbells = (Vec::new(), Vec::new());
    for _ in 0..layout.queues {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|errno| Refusal::Ours(format!("no doorbell: {errno}")))?;
        doorbells.0.push(ours);
        doorbells.1.push(theirs);
    }
    let fds: Vec<BorrowedFd<'_>> =
        std::iter::once(region.as_fd()).chain(doorbells.1.iter().map(AsFd::as_fd)).collect();
    send(socket, &greeting(layout, terms), &fds)?;
    drop(fds);
    let (answer, fds) = receive(socket, stop)?;
    let theirs = match layout_of(&answer) {
        Ok(theirs) if theirs.queues == layout.queues => theirs,
        Ok(_) | Err(Refusal::Queues(_)) => {
            // It is sent away whether it hears why or not.
            let _ =
                send(socket, &Message { queues: layout.queues.into(), ..Message::new(OTHER_QUEUES) }, &[]);
            return Err(Refusal::Queues(answer.queues));
        }
        Err(refusal) => return Err(refusal),
    };
    let agreement = agree(region, layout, (&answer, theirs), fds, |_| Ok(doorbells.0))?;
    send(socket, &Message::new(READY), &[])?;
    Ok(agreement)
}

/// Answers whoever listens.
pub(super) fn visit(socket: &OwnedFd, terms: Terms, stop: BorrowedFd<'_>) -> Result<Agreement, Refusal> {
    let (hello, fds) = receive(socket, stop)?;
    let theirs = layout_of(&hello)?;
    let queues = terms.queues.unwrap_or(theirs.queues);
    let layout = Layout { queues, ring: terms.ring };
    let region = new_region(layout)?;
    send(socket, &greeting(layout, terms), &[region.as_fd()])?;
    if queues != theirs.queues {
        return Err(Refusal::Queues(hello.queues));
    }
    let (last, _) = receive(socket, stop)?;
    match last.about {
        READY => agree(region, layout, (&hello, theirs), fds, |rest| rest.map(doorbell).collect()),
        OTHER_QUEUES => Err(Refusal::Queues(last.queues)),
        _ => Err(Refusal::Broken("a message that has no place there".into())),
    }
}

/// Sends somebody away: we are connected with `other`.
pub(super) fn send_away(socket: &OwnedFd, other: u32) {
    // Whether it hears why or not.
    let _ = send(socket, &Message { ring: other, ..Message::new(BUSY) }, &[]);
}

/// The process at the other end, by the kernel's word.
pub(super) fn process(socket: &OwnedFd) -> u32 {
    sockopt::socket_peercred(socket).map_or(0, |peer| peer.pid.as_raw_nonzero().get().cast_unsigned())
}

fn greeting(layout: Layout, terms: Terms) -> Message {
    let flags = if terms.receives { RECEIVES } else { 0 };
    Message { queues: layout.queues.into(), ring: layout.ring, flags, ..Message::new(GREETING) }
}

fn new_region(layout: Layout) -> Result<Region, Refusal> {
    Region::new(layout.bytes()).map_err(|error| {
        let mib = layout.bytes() >> 20;
        Refusal::Ours(format!("{mib} MiB of shared memory: {error}: ask for less (--queues, --ring)"))
    })
}

/// The layout of a greeting, if it is one and possible.
fn layout_of(message: &Message) -> Result<Layout, Refusal> {
    if message.about != GREETING {
        return Err(Refusal::Broken("a message that is no greeting".into()));
    }
    if !message.ring.is_power_of_two() || !RINGS.contains(&message.ring) {
        return Err(Refusal::Broken(format!("a ring of {} slots", message.ring)));
    }
    let queues = u16::try_from(message.queues).ok().filter(|queues| (1..=MAX_QUEUES).contains(queues));
    Ok(Layout { queues: queues.ok_or(Refusal::Queues(message.queues))?, ring: message.ring })
}

/// A descriptor that can ring and be rung, and do nothing worse.
fn doorbell(fd: OwnedFd) -> Result<OwnedFd, Refusal> {
    let is_socket = sockopt::socket_type(&fd) == Ok(SocketType::STREAM)
        && sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX);
    is_socket.then_some(fd).ok_or_else(|| Refusal::Broken("a doorbell that is none".into()))
}

fn agree(
    ours: Region,
    our_layout: Layout,
    (greeting, their_layout): (&Message, Layout),
    fds: Vec<OwnedFd>,
    doorbells: impl FnOnce(std::vec::IntoIter<OwnedFd>) -> Result<Vec<OwnedFd>, Refusal>,
) -> Result<Agreement, Refusal> {
    let mut fds = fds.into_iter();
    let theirs = fds.next().ok_or_else(|| Refusal::Broken("no region".into()))?;
    let theirs = region::watch(theirs.as_fd(), their_layout.bytes())
        .map_err(|error| Refusal::Broken(format!("its region: {error}")))?;
    let doorbells = doorbells(fds)?;
    if doorbells.len() != usize::from(our_layout.queues) {
        return Err(Refusal::Broken("as many doorbells as queues are needed".into()));
    }
    Ok(Agreement {
        ours: Arc::clone(ours.mapping()),
        our_layout,
        theirs,
        their_layout,
        doorbells: doorbells.into_iter().map(|fd| Doorbell(Arc::new(fd))).collect(),
        receives: greeting.flags & RECEIVES != 0,
        alarm: Alarm::new().map_err(|error| Refusal::Ours(format!("no eventfd: {error}")))?,
    })
}

fn send(socket: &OwnedFd, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), Refusal> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Refusal::Ours("too many queues for one message".into()));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match sendmsg(socket, &[IoSlice::new(message.as_bytes())], &mut control, flags) {
        Ok(_) => Ok(()),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(Refusal::Left),
        Err(errno) => Err(Refusal::Ours(format!("can't greet the other end: {errno}"))),
    }
}

/// The next message, and the descriptors with it.
fn receive(socket: &OwnedFd, stop: BorrowedFd<'_>) -> Result<(Message, Vec<OwnedFd>), Refusal> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut message = Message::default();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        match recvmsg(socket, &mut [IoSliceMut::new(message.as_mut_bytes())], &mut control, flags) {
            Ok(got) => {
                let fds = control.drain().flat_map(|part| match part {
                    RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                    _ => Vec::new(),
                });
                let fds = fds.collect();
                if got.bytes == 0 {
                    return Err(Refusal::Left);
                }
                let whole = got.bytes == size_of::<Message>()
                    && !got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
                return checked(message, whole).map(|message| (message, fds));
            }
            Err(Errno::AGAIN | Errno::INTR) => wait(socket, stop, until)?,
            Err(Errno::CONNRESET) => return Err(Refusal::Left),
            Err(errno) => return Err(Refusal::Ours(format!("can't hear the other end: {errno}"))),
        }
    }
}

fn checked(message: Message, whole: bool) -> Result<Message, Refusal> {
    if message.magic != MAGIC {
        return Err(Refusal::Stranger);
    }
    if message.version != VERSION {
        return Err(Refusal::Version(message.version));
    }
    if !whole {
        return Err(Refusal::Broken("a message of another length".into()));
    }
    if message.about == BUSY {
        return Err(Refusal::Busy { one: message.process, other: message.ring });
    }
    Ok(message)
}

fn wait(socket: &OwnedFd, stop: BorrowedFd<'_>, until: Instant) -> Result<(), Refusal> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Refusal::Silent);
    }
    let mut fds = [PollFd::new(socket, PollFlags::IN), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
    let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) if fds[1].revents().is_empty() => Ok(()),
        Ok(_) | Err(Errno::INTR) => Err(Refusal::Left),
        Err(errno) => Err(Refusal::Ours(format!("can't wait for the other end: {errno}"))),
    }
}
