//! The calls of scripts, made as packetdrill's `run_system_call.c` makes them.

use std::ffi::{c_int, c_void};

use bywash_packetdrill::Interface;

use crate::message::{BYTE, Message, Parts};
use crate::network::{Network, SERVER};

/// The plug-in, which any thread may call.
#[derive(Clone, Copy)]
pub(crate) struct Plugin(pub(crate) Interface, pub(crate) Sendfile);

/// What packetdrill asks the C library for.
pub(crate) type Sendfile =
    unsafe extern "C" fn(c_int, c_int, *mut libc::off_t, libc::size_t) -> libc::ssize_t;

// SAFETY: packetdrill calls it from two threads; that this works is what is tested. The pointer in it is the plug-in's.
unsafe impl Send for Plugin {}

/// A call with its arguments as numbers and bytes.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) name: String,
    pub(crate) numbers: Vec<i64>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) polls: Vec<(libc::pollfd, i16)>,
    pub(crate) message: Option<Message>,
    /// How long each part of a vector is.
    pub(crate) parts: Vec<usize>,
    /// The script's numbers of a pipe's ends.
    pub(crate) ends: Vec<i64>,
}

/// What a call gave.
pub(crate) struct Outcome {
    pub(crate) result: i64,
    pub(crate) errno: i32,
    /// The script's numbers of new files, and ours.
    pub(crate) files: Vec<(i64, c_int)>,
}

/// A call that is made.
struct Performance {
    plugin: Plugin,
    network: Network,
    call: Prepared,
    files: Vec<(i64, c_int)>,
}

pub(crate) fn perform(plugin: Plugin, network: Network, call: Prepared) -> Result<Outcome, String> {
    let mut performance = Performance { plugin, network, call, files: Vec::new() };
    let result = match performance.call.name.as_str() {
        "socket" | "bind" | "connect" | "listen" | "accept" | "shutdown" | "close" => {
            performance.connections()
        }
        "fcntl" | "ioctl" | "setsockopt" | "getsockopt" | "open" | "pipe" | "splice" => performance.files(),
        "poll" | "epoll_create" | "epoll_ctl" | "epoll_wait" => performance.events(),
        _ => performance.bytes(),
    };
    // SAFETY: the C library's errno of this thread.
    let errno = unsafe { *libc::__errno_location() };
    Ok(Outcome { result: result?, errno, files: performance.files })
}

impl Performance {
    fn data(&self) -> *mut c_void {
        self.plugin.0.userdata
    }

    fn int(&self, i: usize) -> c_int {
        self.call.numbers.get(i).and_then(|n| c_int::try_from(*n).ok()).unwrap_or(0)
    }

    fn size(&self, i: usize) -> usize {
        usize::try_from(self.int(i)).unwrap_or(0)
    }

    /// What makes connections, and ends them.
    fn connections(&self) -> Result<i64, String> {
        // What packetdrill has for an address is a `struct sockaddr_storage`, and so long where no address is put into it.
        let ours = self.network.socket_address(self.network.local(), SERVER);
        let theirs = self.network.socket_address(self.network.remote(), SERVER);
        let mut storage = [0u8; size_of::<libc::sockaddr_storage>()];
        Ok(match self.call.name.as_str() {
            "socket" => {
                (self.plugin.0.socket)(self.data(), self.network.domain(), self.int(1), self.int(2)).into()
            }
            "bind" => {
                (self.plugin.0.bind)(self.data(), self.int(0), ours.as_ptr().cast(), length(&ours)).into()
            }
            "connect" => {
                let to = if self.int(1) == libc::AF_UNSPEC { &storage[..] } else { &theirs };
                (self.plugin.0.connect)(self.data(), self.int(0), to.as_ptr().cast(), length(to)).into()
            }
            "listen" => (self.plugin.0.listen)(self.data(), self.int(0), self.int(1)).into(),
            "accept" => {
                let mut len = length(&storage);
                let result = (self.plugin.0.accept)(
                    self.data(),
                    self.int(0),
                    storage.as_mut_ptr().cast(),
                    &raw mut len,
                );
                // The port is the peer's.
                let theirs = self
                    .network
                    .socket_address(self.network.remote(), u16::from_be_bytes([storage[2], storage[3]]));
                if result >= 0 && storage[..len as usize] != theirs {
                    return Err(format!("accept gave {:?}", &storage[..len as usize]));
                }
                result.into()
            }
            "shutdown" => (self.plugin.0.shutdown)(self.data(), self.int(0), self.int(1)).into(),
            "close" => (self.plugin.0.close)(self.data(), self.int(0)).into(),
            name => return Err(format!("what is {name}?")),
        })
    }

    /// What moves bytes.
    fn bytes(&mut self) -> Result<i64, String> {
        let mut buffer = vec![BYTE; 1 << 16];
        let buffer_start = buffer.as_mut_ptr().cast::<c_void>();
        let theirs = self.network.socket_address(self.network.remote(), SERVER);
        Ok(match self.call.name.as_str() {
            "read" => (self.plugin.0.read)(self.data(), self.int(0), buffer_start, self.size(2)) as i64,
            "recv" => {
                (self.plugin.0.recv)(self.data(), self.int(0), buffer_start, self.size(2), self.int(3)) as i64
            }
            "write" => (self.plugin.0.write)(self.data(), self.int(0), buffer_start, self.size(2)) as i64,
            "send" => {
                (self.plugin.0.send)(self.data(), self.int(0), buffer_start, self.size(2), self.int(3)) as i64
            }
            "sendto" => {
                let (to, len) = (theirs.as_ptr().cast(), length(&theirs));
                (self.plugin.0.sendto)(
                    self.data(),
                    self.int(0),
                    buffer_start,
                    self.size(2),
                    self.int(3),
                    to,
                    len,
                ) as i64
            }
            "recvmsg" => {
                let message = self.call.message.take().ok_or("no message")?;
                message.receive(|header| {
                    (self.plugin.0.recvmsg)(self.data(), self.int(0), header, self.int(2)) as i64
                })?
            }
            "sendmsg" => {
                let message = self.call.message.take().ok_or("no message")?;
                message.send(theirs, |header| {
                    (self.plugin.0.sendmsg)(self.data(), self.int(0), header, self.int(2)) as i64
                })
            }
            "readv" => {
                let mut parts = Parts::room(&self.call.parts);
                let result =
                    (self.plugin.0.readv)(self.data(), self.int(0), parts.vector().as_ptr(), self.int(2))
                        as i64;
                parts.check(result)?;
                result
            }
            "writev" => {
                let mut parts = Parts::new(&self.call.parts);
                (self.plugin.0.writev)(self.data(), self.int(0), parts.vector().as_ptr(), self.int(2)) as i64
            }
            "sendfile" => {
                let mut at = i64::from(self.int(2));
                // SAFETY: there is a number to be read and written.
                let sent =
                    unsafe { (self.plugin.1)(self.int(0), self.int(1), &raw mut at, self.size(3)) } as i64;
                if at != i64::from(self.int(2)) + sent {
                    return Err(format!("the file is now at {at}"));
                }
                sent
            }
            name => return Err(format!("what is {name}?")),
        })
    }

    /// Options, and what other files there are.
    fn files(&mut self) -> Result<i64, String> {
        Ok(match self.call.name.as_str() {
            "fcntl" => {
                (self.plugin.0.fcntl)(self.data(), self.int(0), self.int(1), self.int(2).into()).into()
            }
            "ioctl" => {
                let mut got = 0;
                let request = self.int(1).unsigned_abs().into();
                let result = (self.plugin.0.ioctl)(self.data(), self.int(0), request, &raw mut got);
                if got != self.int(2) {
                    return Err(format!("ioctl gave {got}"));
                }
                result.into()
            }
            "setsockopt" => {
                let value = if self.call.bytes.is_empty() {
                    self.int(3).to_ne_bytes().to_vec()
                } else {
                    self.call.bytes.clone()
                };
                let len = u32::try_from(value.len()).unwrap_or(0);
                (self.plugin.0.setsockopt)(
                    self.data(),
                    self.int(0),
                    self.int(1),
                    self.int(2),
                    value.as_ptr().cast(),
                    len,
                )
                .into()
            }
            "getsockopt" => {
                let (mut got, mut len) = (0i32, 4u32);
                let place = (&raw mut got).cast::<c_void>();
                let result = (self.plugin.0.getsockopt)(
                    self.data(),
                    self.int(0),
                    self.int(1),
                    self.int(2),
                    place,
                    &raw mut len,
                );
                if got != self.int(3) {
                    return Err(format!("getsockopt gave {got}"));
                }
                result.into()
            }
            // SAFETY: the path ends with a zero.
            "open" => unsafe { libc::open(self.call.bytes.as_ptr().cast(), self.int(1)) }.into(),
            "pipe" => {
                let mut ends = [0; 2];
                let result = (self.plugin.0.pipe)(self.data(), ends.as_mut_ptr());
                self.files.extend(self.call.ends.iter().copied().zip(ends));
                result.into()
            }
            "splice" => {
                // packetdrill gives numbers that are zero where the script has NULL.
                let (mut from, mut to) = (i64::from(self.int(1)), i64::from(self.int(3)));
                let flags = self.int(5).unsigned_abs();
                (self.plugin.0.splice)(
                    self.data(),
                    self.int(0),
                    &raw mut from,
                    self.int(2),
                    &raw mut to,
                    self.size(4),
                    flags,
                ) as i64
            }
            name => return Err(format!("what is {name}?")),
        })
    }

    /// What waits for events.
    fn events(&self) -> Result<i64, String> {
        Ok(match self.call.name.as_str() {
            "epoll_create" => (self.plugin.0.epoll_create)(self.data(), self.int(0)).into(),
            "epoll_ctl" => {
                let mut event = epoll_event(&self.call.bytes);
                (self.plugin.0.epoll_ctl)(self.data(), self.int(0), self.int(1), self.int(2), &raw mut event)
                    .into()
            }
            "epoll_wait" => {
                let (expected, mut got) =
                    (epoll_event(&self.call.bytes), [libc::epoll_event { events: 0, u64: 0 }; 8]);
                let result = (self.plugin.0.epoll_wait)(
                    self.data(),
                    self.int(0),
                    got.as_mut_ptr(),
                    self.int(2),
                    self.int(3),
                );
                let (events, place) = (got[0].events, got[0].u64);
                if (events, place) != (expected.events, expected.u64) {
                    return Err(format!("epoll_wait gave {result}, {events:#x} for {place}"));
                }
                result.into()
            }
            "poll" => {
                let timeout = self.int(2);
                let mut polls: Vec<libc::pollfd> = self.call.polls.iter().map(|(poll, _)| *poll).collect();
                let result =
                    (self.plugin.0.poll)(self.data(), polls.as_mut_ptr(), polls.len() as u64, timeout);
                for (got, (_, expected)) in polls.iter().zip(&self.call.polls) {
                    if got.revents != *expected {
                        return Err(format!("poll gave {:#x}", got.revents));
                    }
                }
                result.into()
            }
            name => return Err(format!("what is {name}?")),
        })
    }
}

/// The length of an address.
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap()
}

/// `{events=EPOLLIN, fd=4}`: what is told is the script's number.
fn epoll_event(bytes: &[u8]) -> libc::epoll_event {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    libc::epoll_event { events: word(0), u64: word(4).into() }
}
