//! What an interface's driver tells and lets itself be told, by ethtool's ioctl.
//!
//! The ioctl and not sysfs, since sysfs shows the interfaces of the namespace it was mounted in; the ioctl those of
//! the socket's. Layouts: `linux/ethtool.h`.

#![expect(unsafe_code, reason = "ioctl(SIOCETHTOOL)")]

mod rss;
mod rules;
mod specs;

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::Serialize;

pub use rss::{FlowType, Rss};
pub use rules::{Fate, Flow, Rule, Table};
pub use specs::FlowSpec;

/// Why an ethtool request failed.
#[derive(Debug, thiserror::Error)]
pub enum EthtoolError {
    /// No socket could be had.
    #[error("can't open a socket for ethtool: {0}")]
    Socket(Errno),
    /// The driver does not do this.
    #[error("{interface}: its driver can't {what}")]
    Unsupported {
        /// The interface.
        interface: String,
        /// What was asked for.
        what: String,
    },
    /// The kernel or the driver refused.
    #[error("{interface}: can't {what}: {errno}")]
    Refused {
        /// The interface.
        interface: String,
        /// What was asked for.
        what: String,
        /// Why.
        errno: Errno,
    },
    /// Another n-tuple rule is at this place.
    #[error("{interface}: n-tuple rule {location} is another by now")]
    Taken {
        /// The interface.
        interface: String,
        /// The place in the table.
        location: u32,
    },
    /// There is no feature of this name.
    #[error("{interface}: no feature is called '{feature}'")]
    Feature {
        /// The interface.
        interface: String,
        /// The name.
        feature: String,
    },
    /// The driver holds on to how they are.
    #[error(
        "{interface}: can't switch {} {}: the driver doesn't let it",
        if *on { "on" } else { "off" },
        features.join(", ")
    )]
    Fixed {
        /// The interface.
        interface: String,
        /// The features.
        features: Vec<String>,
        /// What was wanted.
        on: bool,
    },
}

/// Who drives an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Driver {
    /// The driver's name: `ixgbe`, `veth`.
    pub name: String,
    /// Its version; the kernel's for most.
    pub version: String,
    /// The NIC's firmware; empty when it has none.
    pub firmware: String,
    /// Where the NIC sits on its bus: `0000:03:00.0`; empty for a virtual one.
    pub bus: String,
}

/// How many queues are in use, and how many there could be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Channels {
    /// In use for receiving: those of its own and the combined ones.
    pub rx: u32,
    /// In use for transmitting.
    pub tx: u32,
    /// The most for receiving.
    pub max_rx: u32,
    /// The most for transmitting.
    pub max_tx: u32,
}

/// Descriptors per ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rings {
    /// Of a receive ring.
    pub rx: u32,
    /// Of a transmit ring.
    pub tx: u32,
    /// The most for a receive ring.
    pub max_rx: u32,
    /// The most for a transmit ring.
    pub max_tx: u32,
}

/// Whether Ethernet pause frames stop a sender (IEEE 802.3 annex 31B).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// We stop when asked to.
    pub rx: bool,
    /// We ask.
    pub tx: bool,
    /// The two ends agree on it when the link comes up.
    pub negotiated: bool,
}

/// One feature: an offload or another thing that can be on or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// It is on.
    pub on: bool,
    /// The driver lets it be changed.
    pub changeable: bool,
}

/// Ethtool in one network namespace: the one it was opened in, whichever thread uses it.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
}

impl Ethtool {
    /// Opens the calling thread's network namespace.
    ///
    /// # Errors
    /// When this process has too many files open.
    pub fn open() -> Result<Self, EthtoolError> {
        // Any socket will do: the kernel takes its namespace.
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(EthtoolError::Socket)?;
        Ok(Self { socket })
    }

    /// Who drives the interface.
    ///
    /// # Errors
    /// When there is no such interface, or it has no driver that says.
    pub fn driver(&self, interface: &str) -> Result<Driver, EthtoolError> {
        let answer = self.fixed(interface, &GDRVINFO)?;
        let text = |at: usize| {
            let field = &answer[at..at + 32];
            let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..end]).into_owned()
        };
        let no = |text: String| if text == "N/A" { String::new() } else { text };
        Ok(Driver { name: text(4), version: text(36), firmware: no(text(68)), bus: no(text(100)) })
    }

    /// Its queues.
    ///
    /// # Errors
    /// When its driver does not say, as those with one queue.
    pub fn channels(&self, interface: &str) -> Result<Channels, EthtoolError> {
        let answer = self.fixed(interface, &GCHANNELS)?;
        // max_rx, max_tx, max_other, max_combined, then the same of those in use
        let [max_rx, max_tx, _, max_both, rx, tx, _, both] = std::array::from_fn(|i| word(&answer, 1 + i));
        let sum = u32::saturating_add;
        Ok(Channels {
            rx: sum(rx, both),
            tx: sum(tx, both),
            max_rx: sum(max_rx, max_both),
            max_tx: sum(max_tx, max_both),
        })
    }

    /// Sets how many queues are in use, of a driver that counts those for receiving and for transmitting apart.
    ///
    /// # Errors
    /// When its driver can't, or there are sockets or programs that need others.
    pub fn set_channels(&self, interface: &str, rx: u32, tx: u32) -> Result<(), EthtoolError> {
        let answer = self.fixed(interface, &GCHANNELS)?;
        // As `channels` reads them; those for other things stay as they are.
        let mut words: [u32; 8] = std::array::from_fn(|i| word(&answer, 1 + i));
        [words[4], words[5], words[7]] = [rx, tx, 0];
        self.fixed_with(interface, &SCHANNELS, &words).map(drop)
    }

    /// Its rings' sizes.
    ///
    /// # Errors
    /// When its driver does not say.
    pub fn rings(&self, interface: &str) -> Result<Rings, EthtoolError> {
        let answer = self.fixed(interface, &GRINGPARAM)?;
        // rx_max, mini, jumbo, tx_max, then the same of those in use
        Ok(Rings {
            max_rx: word(&answer, 1),
            max_tx: word(&answer, 4),
            rx: word(&answer, 5),
            tx: word(&answer, 8),
        })
    }

    /// Its pause frames.
    ///
    /// # Errors
    /// When its driver does not say.
    pub fn pause(&self, interface: &str) -> Result<Pause, EthtoolError> {
        let answer = self.fixed(interface, &GPAUSEPARAM)?;
        let flag = |at| word(&answer, at) != 0;
        Ok(Pause { negotiated: flag(1), rx: flag(2), tx: flag(3) })
    }

    /// The speed of its link in Mbit/s; `None` while there is none, or when it means nothing. For a veth it is a
    /// number without meaning, 10 000.
    ///
    /// # Errors
    /// When its driver does not say.
    pub fn speed(&self, interface: &str) -> Result<Option<u32>, EthtoolError> {
        let mut request = vec![0; GLINKSETTINGS.size];
        request[..4].copy_from_slice(&GLINKSETTINGS.number.to_ne_bytes());
        // SAFETY: see LINK_MODE_WORDS: the buffer holds the struct and the longest masks.
        unsafe { self.call(interface, GLINKSETTINGS.what, &mut request) }?;
        // The kernel has put how many words its masks have, negated (byte 15), and wants to hear the same.
        request[15] = request[15].wrapping_neg();
        request[..4].copy_from_slice(&GLINKSETTINGS.number.to_ne_bytes());
        // SAFETY: as above; a number of words above the longest is refused by the kernel with EINVAL or negated
        // again.
        unsafe { self.call(interface, GLINKSETTINGS.what, &mut request) }?;
        Ok(Some(word(&request, 1)).filter(|&speed| speed != 0 && speed != SPEED_UNKNOWN))
    }

    /// All its features by the kernel's names: `rx-gro`, `tx-checksum-ip-generic`, `rx-ntuple-filter`.
    ///
    /// # Errors
    /// When there is no such interface.
    pub fn features(&self, interface: &str) -> Result<BTreeMap<String, Feature>, EthtoolError> {
        let names = self.feature_names(interface)?;
        let blocks = names.len().div_ceil(32);
        let mut request = header(GFEATURES, blocks, 8 + blocks * 16);
        // SAFETY: the kernel writes at most as many blocks of 16 bytes as the request says, which the buffer holds.
        unsafe { self.call(interface, "tell its features", &mut request) }?;
        let bit =
            |index: usize, field: usize| word(&request, 2 + index / 32 * 4 + field) >> (index % 32) & 1 == 1;
        // Each block: available, requested, active, never changed.
        let feature = |i| Feature { on: bit(i, 2), changeable: bit(i, 0) && !bit(i, 3) };
        Ok(names
            .into_iter()
            .enumerate()
            .filter(|(_, n)| !n.is_empty())
            .map(|(i, n)| (n, feature(i)))
            .collect())
    }

    /// Switches features on or off, by the kernel's names.
    ///
    /// # Errors
    /// When one is unknown, or the driver holds on to it: then the others are switched all the same.
    pub fn set_features(&self, interface: &str, features: &[&str], on: bool) -> Result<(), EthtoolError> {
        let names = self.feature_names(interface)?;
        let blocks = names.len().div_ceil(32);
        let mut request = header(SFEATURES, blocks, 8 + blocks * 8);
        for feature in features {
            let index = names.iter().position(|name| name == feature).ok_or_else(|| {
                EthtoolError::Feature { interface: interface.into(), feature: (*feature).into() }
            })?;
            let bit = 1_u32 << (index % 32);
            // Each block: which bits are meant, and what they shall be.
            for field in 0..=usize::from(on) {
                let at = 8 + index / 32 * 8 + field * 4;
                let now = word(&request, at / 4) | bit;
                request[at..at + 4].copy_from_slice(&now.to_ne_bytes());
            }
        }
        // SAFETY: the kernel reads as many blocks of 8 bytes as the request says, which the buffer holds, and writes
        // none.
        unsafe { self.call(interface, "switch features", &mut request) }?;
        let now = self.features(interface)?;
        let wrong = |feature: &&&str| now.get(**feature).is_none_or(|found| found.on != on);
        let features: Vec<String> = features.iter().filter(wrong).map(|f| (*f).to_owned()).collect();
        if features.is_empty() {
            return Ok(());
        }
        Err(EthtoolError::Fixed { interface: interface.into(), features, on })
    }

    /// The names of all features, by bit.
    fn feature_names(&self, interface: &str) -> Result<Vec<String>, EthtoolError> {
        // A reserved word, then the wanted sets as 64 bits (both targets are little-endian), then their sizes.
        let answer = self.fixed_with(interface, &GSSET_INFO, &[0, 1 << ETH_SS_FEATURES])?;
        let count = word(&answer, 4) as usize;
        let mut request = header(GSTRINGS, 0, 12 + count * STRING);
        request[4..8].copy_from_slice(&ETH_SS_FEATURES.to_ne_bytes());
        // SAFETY: how many feature names there are is fixed when the kernel is built, and was asked just now; the
        // kernel writes its header and that many names.
        unsafe { self.call(interface, "tell its features' names", &mut request) }?;
        let name = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
        };
        Ok(request[12..].chunks_exact(STRING).map(name).collect())
    }

    fn fixed(&self, interface: &str, command: &Command) -> Result<Vec<u8>, EthtoolError> {
        self.fixed_with(interface, command, &[])
    }

    /// A command whose struct has one size; `words` are its first fields behind the command's number.
    fn fixed_with(&self, interface: &str, command: &Command, words: &[u32]) -> Result<Vec<u8>, EthtoolError> {
        let mut request = vec![0; command.size];
        request[..4].copy_from_slice(&command.number.to_ne_bytes());
        for (field, value) in request[4..].chunks_exact_mut(4).zip(words) {
            field.copy_from_slice(&value.to_ne_bytes());
        }
        // SAFETY: `size` is that of the command's struct in linux/ethtool.h, which never changes, and the kernel
        // writes no more.
        unsafe { self.call(interface, command.what, &mut request) }?;
        Ok(request)
    }

    /// # Safety
    /// `request` must be as long as what the kernel reads and writes for the command in its first four bytes.
    unsafe fn call(&self, interface: &str, what: &str, request: &mut [u8]) -> Result<(), EthtoolError> {
        let refused = |errno| EthtoolError::Refused { interface: interface.into(), what: what.into(), errno };
        if interface.len() >= libc::IFNAMSIZ {
            return Err(refused(Errno::NODEV));
        }
        let mut name = [0; libc::IFNAMSIZ];
        for (to, from) in name.iter_mut().zip(interface.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        let mut ifreq = libc::ifreq {
            ifr_name: name,
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: request.as_mut_ptr().cast() },
        };
        // SAFETY: the socket is open for as long as `self`; `ifreq` is a whole struct ifreq; `request`, which it
        // points to, is exclusively borrowed and, by this function's contract, long enough.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut ifreq) };
        if result >= 0 {
            return Ok(()); // SFEATURES answers with bits that the caller finds out better by looking
        }
        Err(match std::io::Error::last_os_error().raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::OPNOTSUPP) => {
                EthtoolError::Unsupported { interface: interface.into(), what: what.into() }
            }
            errno => refused(errno.unwrap_or(Errno::IO)),
        })
    }
}

/// A command whose struct has one size.
struct Command {
    number: u32,
    /// Of its struct, bytes.
    size: usize,
    /// Completes "can't …".
    what: &'static str,
}

const GDRVINFO: Command = Command { number: 0x03, size: 196, what: "tell its driver" };
const GRINGPARAM: Command = Command { number: 0x10, size: 36, what: "tell its rings' sizes" };
const GPAUSEPARAM: Command = Command { number: 0x12, size: 16, what: "tell its pause frames" };
const GSSET_INFO: Command = Command { number: 0x37, size: 20, what: "tell how many features it has" };
const GCHANNELS: Command = Command { number: 0x3c, size: 36, what: "tell its queues" };
const SCHANNELS: Command = Command { number: 0x3d, size: 36, what: "set how many queues it has" };
const GLINKSETTINGS: Command =
    Command { number: 0x4c, size: 48 + 3 * LINK_MODE_WORDS * 4, what: "tell its link's speed" };

const GSTRINGS: u32 = 0x1b;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;

const ETH_SS_FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`.
const STRING: usize = 32;
/// The number of words is a signed byte, and there are three masks.
const LINK_MODE_WORDS: usize = 127;
/// `SPEED_UNKNOWN`.
const SPEED_UNKNOWN: u32 = u32::MAX;

/// A request that starts with the command's number and a count.
fn header(command: u32, count: usize, size: usize) -> Vec<u8> {
    let mut request = vec![0; size];
    request[..4].copy_from_slice(&command.to_ne_bytes());
    request[4..8].copy_from_slice(&u32::try_from(count).unwrap_or_default().to_ne_bytes());
    request
}

/// The 32-bit field number `index`; 0 past the end.
fn word(bytes: &[u8], index: usize) -> u32 {
    bytes.get(index * 4..).and_then(|rest| rest.first_chunk()).map_or(0, |field| u32::from_ne_bytes(*field))
}
