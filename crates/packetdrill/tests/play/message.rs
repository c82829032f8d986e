//! What `sendmsg` is given and `recvmsg` is to give, and vectors: `{msg_name(...)=..., msg_iov(1)=[{...,0}], msg_flags=0, msg_control=[{cmsg_level=..., ...}]}`.

use std::ffi::{c_int, c_void};
use std::time::Duration;

/// A `struct cmsghdr`.
const HEADER: usize = 16;

/// What is sent, and what peers send in the player's packets.
pub(crate) const BYTE: u8 = 0x5a;

/// The parts of a vector, and the fields in their order. Times are nanoseconds since the script began.
#[derive(Debug)]
pub(crate) struct Message {
    parts: Vec<usize>,
    fields: Vec<(String, i64)>,
    begin: Duration,
}

/// The memory of a vector.
pub(crate) struct Parts(Vec<Vec<u8>>);

/// How long the parts of `[{..., 10}, {..., 20}]` are.
pub(crate) fn parts(text: &str) -> Result<Vec<usize>, String> {
    let parts = text.split("{...,").skip(1).map(|part| part.split('}').next().unwrap_or_default().trim());
    parts.map(|part| part.parse().map_err(|_| format!("what length is {part}?"))).collect()
}

impl Parts {
    pub(crate) fn new(lengths: &[usize]) -> Self {
        Self(lengths.iter().map(|n| vec![BYTE; *n]).collect())
    }

    pub(crate) fn vector(&mut self) -> Vec<libc::iovec> {
        let part =
            |part: &mut Vec<u8>| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        self.0.iter_mut().map(part).collect()
    }

    /// Room for what is to be read.
    pub(crate) fn room(lengths: &[usize]) -> Self {
        Self(lengths.iter().map(|n| vec![0; *n]).collect())
    }

    /// So many bytes were read, one part after the other, and nothing else was written.
    pub(crate) fn check(&self, n: i64) -> Result<(), String> {
        let bytes = self.0.concat();
        let (read, rest) = bytes.split_at(usize::try_from(n).unwrap_or(0).min(bytes.len()));
        let right = read.iter().all(|byte| *byte == BYTE) && rest.iter().all(|byte| *byte == 0);
        if right { Ok(()) } else { Err(format!("{n} bytes are not where they should be")) }
    }
}

impl Message {
    pub(crate) fn parse(
        text: &str,
        begin: Duration,
        number: impl Fn(&str) -> Result<i64, String>,
    ) -> Result<Self, String> {
        let mut fields = Vec::new();
        for part in text.split([',', '{', '}', '[', ']']).filter(|part| !part.contains('(')) {
            let Some((name, value)) = part.split_once('=').filter(|(_, value)| !value.is_empty()) else {
                continue;
            };
            match (name.trim(), fields.last_mut()) {
                ("scm_nsec", Some((_, seconds))) => *seconds = *seconds * 1_000_000_000 + number(value)?,
                (name, _) => fields.push((name.to_owned(), number(value)?)),
            }
        }
        Ok(Self { parts: parts(text)?, fields, begin })
    }

    /// Makes the call as packetdrill does: with the address that it connects to, which a connection does not need.
    pub(crate) fn send(&self, mut to: Vec<u8>, call: impl FnOnce(*mut libc::msghdr) -> i64) -> i64 {
        let mut parts = Parts::new(&self.parts);
        let mut vector = parts.vector();
        // SAFETY: a `msghdr` is numbers and pointers, which may be null.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (vector.as_mut_ptr(), vector.len());
        header.msg_name = to.as_mut_ptr().cast::<c_void>();
        header.msg_namelen = u32::try_from(to.len()).unwrap();
        // packetdrill has memory for them, of which nothing is used.
        let mut control = [0u8; 512];
        header.msg_control = control.as_mut_ptr().cast::<c_void>();
        call(&raw mut header)
    }

    /// Bytes for the control messages that are expected: packetdrill gives no more.
    fn room(&self) -> usize {
        let mut room = 0;
        for (i, (name, _)) in self.fields.iter().enumerate() {
            let Some((level, kind)) = self
                .fields
                .get(i + 1)
                .filter(|_| name == "cmsg_level")
                .map(|_| (self.fields[i].1, self.fields[i + 1].1))
            else {
                continue;
            };
            let is = |what: (i32, i32)| (level, kind) == (what.0.into(), what.1.into());
            let error = size_of::<libc::sock_extended_err>();
            let data = if is((libc::IPPROTO_IP, libc::IP_RECVERR)) {
                error + size_of::<libc::sockaddr_in>()
            } else if is((libc::IPPROTO_IPV6, libc::IPV6_RECVERR)) {
                error + size_of::<libc::sockaddr_in6>()
            } else if is((libc::SOL_SOCKET, libc::SO_TIMESTAMPING)) {
                48
            } else {
                size_of::<c_int>()
            };
            room += HEADER + data.next_multiple_of(8);
        }
        room
    }

    /// Makes the call, and compares what it gives unless it fails.
    pub(crate) fn receive(self, call: impl FnOnce(*mut libc::msghdr) -> i64) -> Result<i64, String> {
        let mut parts = Parts::room(&self.parts);
        let mut vector = parts.vector();
        let (mut control, mut name) = ([0u8; 512], [0u8; size_of::<libc::sockaddr_storage>()]);
        // SAFETY: a `msghdr` is numbers and pointers, which may be null.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (vector.as_mut_ptr(), vector.len());
        header.msg_control = control.as_mut_ptr().cast::<c_void>();
        header.msg_controllen = self.room();
        header.msg_name = name.as_mut_ptr().cast::<c_void>();
        header.msg_namelen = u32::try_from(name.len()).unwrap();
        let result = call(&raw mut header);
        parts.check(result)?;
        if result < 0 {
            return Ok(result);
        }
        let mut got = vec![("msg_flags", i64::from(header.msg_flags))];
        let mut left = &control[..header.msg_controllen];
        while left.len() > HEADER {
            let length = usize::try_from(word(left, 0)).unwrap();
            let (level, kind) = (word(left, 8), word(left, 12));
            got.extend([("cmsg_level", level), ("cmsg_type", kind)]);
            got.extend(self.data((level, kind), &left[HEADER..length]));
            left = left.get(length.next_multiple_of(8)..).unwrap_or_default();
        }
        // The clock may have been looked at meanwhile.
        let near = |name: &str, a: i64, b: i64| name == "scm_sec" && a.abs_diff(b) < 4_000_000;
        let same = got.len() == self.fields.len()
            && got.iter().zip(&self.fields).all(|((name, got), (other, expected))| {
                name == other && (got == expected || near(name, *got, *expected))
            });
        if same { Ok(result) } else { Err(format!("recvmsg gave {got:?}, not {:?}", self.fields)) }
    }

    fn data(&self, (level, kind): (i64, i64), data: &[u8]) -> Vec<(&'static str, i64)> {
        let is = |what: (i32, i32)| (level, kind) == (what.0.into(), what.1.into());
        let address = if is((libc::IPPROTO_IP, libc::IP_RECVERR)) {
            Some(size_of::<libc::sockaddr_in>())
        } else if is((libc::IPPROTO_IPV6, libc::IPV6_RECVERR)) {
            Some(size_of::<libc::sockaddr_in6>())
        } else {
            None
        };
        if let Some(address) = address {
            assert_eq!(data.len(), 16 + address, "a `sock_extended_err` and an address");
            let (origin, kind, code) = (data[4].into(), data[5].into(), data[6].into());
            let (errno, info, id) = (word(data, 0), word(data, 8), word(data, 12));
            let names = ["ee_errno", "ee_origin", "ee_type", "ee_code", "ee_info", "ee_data"];
            return names.into_iter().zip([errno, origin, kind, code, info, id]).collect();
        }
        if is((libc::SOL_SOCKET, libc::SO_TIMESTAMPING)) {
            assert_eq!(data.len(), 48, "three times");
            let at = word(data, 0) * 1_000_000_000 + word(data, 8);
            let begin = i64::try_from(self.begin.as_nanos()).unwrap();
            return vec![("scm_sec", at - begin)];
        }
        vec![("cmsg_data", word(data, 0))]
    }
}

/// Four bytes of a structure.
fn word(bytes: &[u8], at: usize) -> i64 {
    i32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()).into()
}
