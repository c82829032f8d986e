//! A netlink socket: one request, its answers, and the kernel's own words when it refuses.
//!
//! Synchronous on purpose: a request is answered while `recv` is called, so there is nothing to wait for. A socket
//! belongs for ever to the network namespace it was opened in, whichever thread uses it later. Of the netlink crates
//! only the framing is used: their typed messages refuse a whole dump when one attribute of one interface is not as
//! they know it, and a kernel newer than the crate must not make the interfaces disappear.

#![expect(unsafe_code, reason = "setsockopt(SOL_NETLINK) is not in rustix")]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{
    DefaultNla, Emitable, ErrorBuffer, NLA_F_NESTED, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
    NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN, NetlinkBuffer, NetlinkHeader, NlasIterator,
};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Why a netlink request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel refused it.
    #[error("can't {what}: {errno}{}{}", Reason(message), right(*errno))]
    Refused {
        /// What was asked for: `create veth bw0`.
        what: String,
        /// The error number.
        errno: rustix::io::Errno,
        /// The kernel's explanation, where it gave one (extended acknowledgement).
        message: Option<String>,
    },
    /// The socket itself failed.
    #[error("netlink: {0}")]
    Socket(#[from] rustix::io::Errno),
    /// The kernel's answer can't be read.
    #[error("can't {what}: the kernel's answer can't be read: {why}")]
    Answer {
        /// What was asked for.
        what: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// The kernel has no such thing.
    #[error("the kernel has no {0}")]
    Missing(String),
}

impl NetlinkError {
    /// The kernel's error number, if it refused.
    #[must_use]
    pub fn errno(&self) -> Option<rustix::io::Errno> {
        match self {
            Self::Refused { errno, .. } | Self::Socket(errno) => Some(*errno),
            Self::Answer { .. } | Self::Missing(_) => None,
        }
    }
}

/// The kernel's explanation behind the error number.
struct Reason<'a>(&'a Option<String>);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |message| write!(f, ": {message}"))
    }
}

/// What is missing when the kernel says that it is not permitted: it wants one right for all changes.
fn right(errno: rustix::io::Errno) -> &'static str {
    if errno == rustix::io::Errno::PERM { ": it needs root or CAP_NET_ADMIN" } else { "" }
}

/// Which part of the kernel a socket talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Links, addresses, routes, neighbours.
    Route,
    /// Families by name.
    Generic,
}

/// A netlink socket of the network namespace it was opened in.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

/// The kernel never makes one datagram of a dump longer than this (`NLMSG_GOODSIZE` is smaller, `netlink_dump` allows
/// 32 KiB); a longer one is noticed.
const RECEIVE: usize = 1 << 16;

/// A dump that was disturbed by a change is asked for again, this often at most.
const DUMPS: usize = 8;

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open(family: Family) -> Result<Self, NetlinkError> {
        let protocol = match family {
            Family::Route => None, // 0
            Family::Generic => Some(rustix::net::netlink::GENERIC),
        };
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        // Only a lost answer, which is a kernel bug, can make a request wait.
        set_socket_timeout(&fd, Timeout::Recv, Some(Duration::from_secs(10)))?;
        let socket = Self { fd, sequence: 0 };
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            socket.switch_on(option);
        }
        Ok(socket)
    }

    /// An older kernel without the option explains less; nothing else changes.
    fn switch_on(&self, option: libc::c_int) {
        let one: libc::c_int = 1;
        // SAFETY: the fd is open for as long as `self`, and the kernel reads four bytes of `one`, which outlives the
        // call and is exactly that long.
        unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), libc::SOL_NETLINK, option, (&raw const one).cast(), 4);
        }
    }

    /// Asks for something to be done, or for one answer; returns the answer's bytes behind the netlink header.
    pub(crate) fn request(&mut self, message: &Message) -> Result<Option<Vec<u8>>, NetlinkError> {
        self.send(message, NLM_F_ACK)?;
        let mut answers = Vec::new();
        self.receive(message, &mut answers)?;
        Ok(answers.pop())
    }

    /// Asks for everything there is of a kind.
    pub(crate) fn dump(&mut self, message: &Message) -> Result<Vec<Vec<u8>>, NetlinkError> {
        for _ in 0..DUMPS {
            self.send(message, NLM_F_DUMP)?;
            let mut answers = Vec::new();
            if self.receive(message, &mut answers)? {
                return Ok(answers);
            }
        }
        Err(message.answer(format!("it changed while it was read, {DUMPS} times")))
    }

    fn send(&mut self, message: &Message, flags: u16) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = vec![0; 16];
        bytes.extend_from_slice(&message.body);
        let mut header = NetlinkHeader::default();
        header.length = u32::try_from(bytes.len()).map_err(|_| message.answer("too long to ask".into()))?;
        header.message_type = message.kind;
        header.flags = NLM_F_REQUEST | message.flags | flags;
        header.sequence_number = self.sequence;
        header.emit(&mut bytes[..16]);
        retry_on_intr(|| rustix::net::send(&self.fd, &bytes, SendFlags::empty()))?;
        Ok(())
    }

    /// Reads up to the end of the answer; false when a dump was disturbed and is worth nothing.
    fn receive(&mut self, message: &Message, answers: &mut Vec<Vec<u8>>) -> Result<bool, NetlinkError> {
        let mut buffer = vec![0_u8; RECEIVE];
        let mut whole = true;
        loop {
            let (length, sent) =
                retry_on_intr(|| rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::TRUNC))?;
            if sent > length {
                return Err(message.answer(format!("{sent} bytes at once, more than {RECEIVE}")));
            }
            let mut rest = &buffer[..length];
            while !rest.is_empty() {
                let part = NetlinkBuffer::new_checked(rest).map_err(|e| message.answer(e.to_string()))?;
                let next = (part.length() as usize).next_multiple_of(4).clamp(16, rest.len());
                rest = &rest[next..];
                if part.sequence_number() != self.sequence {
                    continue; // left over from a request that was given up
                }
                whole &= part.flags() & NLM_F_DUMP_INTR == 0;
                match part.message_type() {
                    NLMSG_NOOP => {}
                    NLMSG_OVERRUN => return Err(message.answer("some of it was lost".into())),
                    NLMSG_DONE | NLMSG_ERROR => {
                        message.check(part.payload(), part.message_type())?;
                        return Ok(whole);
                    }
                    _ => answers.push(part.payload().to_vec()),
                }
            }
        }
    }
}

/// A request: its type, its fixed header and its attributes.
#[derive(Debug)]
pub(crate) struct Message {
    what: String,
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Message {
    /// `what` completes "can't …" in an error. The header's bytes come first.
    pub(crate) fn new(what: impl Into<String>, kind: u16, header: &[u8]) -> Self {
        Self { what: what.into(), kind, flags: 0, body: header.to_vec() }
    }

    /// With flags beside `NLM_F_REQUEST`.
    pub(crate) fn flags(mut self, flags: u16) -> Self {
        self.flags = flags;
        self
    }

    /// With attributes.
    pub(crate) fn with(mut self, attributes: &[DefaultNla]) -> Self {
        self.body.extend(emit(attributes));
        self
    }

    /// An answer that makes no sense.
    pub(crate) fn answer(&self, why: String) -> NetlinkError {
        NetlinkError::Answer { what: self.what.clone(), why }
    }

    /// What an acknowledgement says.
    fn check(&self, payload: &[u8], kind: u16) -> Result<(), NetlinkError> {
        // Kernels may end a dump without a code.
        let Ok(error) = ErrorBuffer::new_checked(payload) else { return Ok(()) };
        let Some(code) = error.code() else { return Ok(()) };
        // An error repeats the header of the request (16 bytes, without its body: NETLINK_CAP_ACK); DONE does not.
        let skip = if kind == NLMSG_ERROR { 16 } else { 0 };
        let text = Attributes(error.payload().get(skip..).unwrap_or_default()).text(NLMSGERR_ATTR_MSG);
        Err(NetlinkError::Refused {
            what: self.what.clone(),
            errno: rustix::io::Errno::from_raw_os_error(code.get().saturating_neg()),
            message: text,
        })
    }
}

/// `NLMSGERR_ATTR_MSG` of `linux/netlink.h`.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// Attributes of an answer. What is not as expected reads as absent: the kernel may know more than we do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    /// Each attribute's type and value, up to the first that is damaged.
    pub(crate) fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let bytes = self.0;
        let mut at = 0;
        NlasIterator::new(bytes).map_while(Result::ok).map(move |attribute| {
            let length = usize::from(attribute.length());
            let value = &bytes[at + 4..at + length];
            at += length.next_multiple_of(4);
            (attribute.kind(), value)
        })
    }

    /// The value of the first attribute of a type.
    pub(crate) fn bytes(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(found, _)| *found == kind).map(|(_, value)| value)
    }

    /// The attributes in an attribute.
    pub(crate) fn nested(self, kind: u16) -> Attributes<'a> {
        Attributes(self.bytes(kind).unwrap_or_default())
    }

    pub(crate) fn u8(self, kind: u16) -> Option<u8> {
        self.bytes(kind)?.first().copied()
    }

    pub(crate) fn u16(self, kind: u16) -> Option<u16> {
        Some(u16::from_ne_bytes(self.bytes(kind)?.try_into().ok()?))
    }

    pub(crate) fn u32(self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(self.bytes(kind)?.try_into().ok()?))
    }

    /// Generic families send 32 bits where 64 are not needed (`NLA_UINT`).
    pub(crate) fn u64(self, kind: u16) -> Option<u64> {
        let value = self.bytes(kind)?;
        match value.len() {
            4 => self.u32(kind).map(u64::from),
            _ => Some(u64::from_ne_bytes(value.try_into().ok()?)),
        }
    }

    /// A text, without its closing 0.
    pub(crate) fn text(self, kind: u16) -> Option<String> {
        let value = self.bytes(kind)?;
        let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
        Some(String::from_utf8_lossy(&value[..end]).into_owned())
    }
}

/// An attribute with any bytes.
pub(crate) fn bytes(kind: u16, value: &[u8]) -> DefaultNla {
    DefaultNla::new(kind, value.to_vec())
}

/// An attribute with a number in the machine's byte order.
pub(crate) fn number(kind: u16, value: u32) -> DefaultNla {
    bytes(kind, &value.to_ne_bytes())
}

/// An attribute with a text.
pub(crate) fn text(kind: u16, value: &str) -> DefaultNla {
    let mut with_end = value.as_bytes().to_vec();
    with_end.push(0);
    DefaultNla::new(kind, with_end)
}

/// An attribute with attributes.
pub(crate) fn nested(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    DefaultNla::new(kind | NLA_F_NESTED, emit(attributes))
}

/// The attributes' bytes.
pub(crate) fn emit(attributes: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    bytes
}

/// A name the kernel takes for an interface, checked here since a longer one would be cut or refused without a
/// reason.
pub(crate) fn interface_name(name: &str) -> Result<&str, NetlinkError> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(NetlinkError::Refused {
            what: format!("use '{name}' as an interface's name"),
            errno: rustix::io::Errno::INVAL,
            message: Some("1 to 15 bytes".into()),
        });
    }
    Ok(name)
}

/// An I/O error of what was not netlink, for modules that do both.
impl From<NetlinkError> for io::Error {
    fn from(error: NetlinkError) -> Self {
        match error.errno() {
            Some(errno) => Self::new(Self::from(errno).kind(), error),
            None => Self::other(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_read_as_they_were_written() {
        let bytes = emit(&[text(1, "bw0"), nested(2, &[number(3, 77), bytes(4, &[9])]), bytes(5, &[1, 0])]);
        let attributes = Attributes(&bytes);
        assert_eq!(attributes.text(1).as_deref(), Some("bw0"));
        assert_eq!(attributes.nested(2).u32(3), Some(77));
        assert_eq!(attributes.nested(2).u64(3), Some(77));
        assert_eq!(attributes.nested(2).u8(4), Some(9));
        assert_eq!(attributes.u16(5), Some(u16::from_ne_bytes([1, 0])));
        assert_eq!(attributes.u32(5), None, "of another length");
        assert_eq!(attributes.u32(9), None, "absent");
        assert_eq!(attributes.iter().map(|(kind, _)| kind).collect::<Vec<_>>(), [1, 2, 5]);
    }

    #[test]
    fn damaged_attributes_end_the_list() {
        let good = emit(&[number(1, 5)]);
        for tail in [&[0, 0, 0, 0][..], &[3, 0, 1, 0], &[9, 0, 1, 0, 1], &[8], &[255, 255, 255, 255]] {
            let all = [&good[..], tail].concat();
            assert_eq!(Attributes(&all).iter().count(), 1, "{tail:?}");
        }
    }

    #[test]
    fn a_refusal_says_what_and_why() {
        let message = Message::new("create veth bw0", 16, &[]);
        let mut payload = (-17_i32).to_ne_bytes().to_vec();
        payload.extend([0; 16]);
        assert_eq!(
            message.check(&payload, NLMSG_ERROR).unwrap_err().to_string(),
            "can't create veth bw0: File exists (os error 17)"
        );
        payload.extend(emit(&[text(NLMSGERR_ATTR_MSG, "Name not unique")]));
        let error = message.check(&payload, NLMSG_ERROR).unwrap_err();
        assert_eq!(error.errno(), Some(rustix::io::Errno::EXIST));
        assert!(error.to_string().ends_with("(os error 17): Name not unique"), "{error}");
        payload[..4].copy_from_slice(&(-1_i32).to_ne_bytes());
        let error = message.check(&payload, NLMSG_ERROR).unwrap_err();
        assert!(error.to_string().ends_with("Name not unique: it needs root or CAP_NET_ADMIN"), "{error}");
        assert!(message.check(&[0; 20], NLMSG_ERROR).is_ok(), "an acknowledgement");
        assert!(message.check(&[], NLMSG_DONE).is_ok(), "a dump's end without a code");
    }
}
