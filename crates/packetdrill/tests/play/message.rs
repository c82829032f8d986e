//! What `recvmsg` is to give: `{msg_name(...)=..., msg_iov(1)=[{...,0}], msg_flags=0, msg_control=[{cmsg_level=..., ...}]}`.

use std::ffi::c_void;
use std::time::Duration;

/// A `struct cmsghdr`.
const HEADER: usize = 16;

/// Bytes that there is room for, and the fields in their order. Times are nanoseconds since the script began.
#[derive(Debug)]
pub(crate) struct Message {
    room: usize,
    fields: Vec<(String, i64)>,
    begin: Duration,
}

impl Message {
    pub(crate) fn parse(
        text: &str,
        begin: Duration,
        number: impl Fn(&str) -> Result<i64, String>,
    ) -> Result<Self, String> {
        let room = text.split_once("[{...,").and_then(|(_, rest)| rest.split_once('}')).ok_or("no room")?.0;
        let room = room.trim().parse().map_err(|_| "a strange length")?;
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
        Ok(Self { room, fields, begin })
    }

    /// Makes the call, and compares what it gives unless it fails.
    pub(crate) fn receive(self, call: impl FnOnce(*mut libc::msghdr) -> i64) -> Result<i64, String> {
        let (mut bytes, mut control) = (vec![0u8; self.room], [0u8; 512]);
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: self.room };
        // SAFETY: a `msghdr` is numbers and pointers, which may be null.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        header.msg_control = control.as_mut_ptr().cast::<c_void>();
        header.msg_controllen = control.len();
        let result = call(&raw mut header);
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
        if is((libc::IPPROTO_IP, libc::IP_RECVERR)) {
            assert_eq!(data.len(), 32, "a `sock_extended_err` and a `sockaddr_in`");
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
