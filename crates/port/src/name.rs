//! Ports by name, as users write them: `xdp:eth1/4/rx`, `pci:0000:03:00.0`, `null:`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Which queues of an `xdp:` port are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueueChoice {
    /// Only this queue; all of them when absent.
    pub queue: Option<u16>,
    /// Only its receiving half.
    pub rx_only: bool,
}

/// What stands behind the name of a NIC that our own driver drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NicOptions {
    /// `/mtu=9000`: its MTU in bytes, of [`MTUS`]; as long as the NIC allows when absent.
    pub mtu: Option<u16>,
    /// `/fdir=2k`: room for flow director filters; none when absent.
    pub fdir: Option<FdirFilters>,
    /// `/rss=symmetric`: both directions of a flow come by one queue; each by its own when absent.
    pub symmetric: bool,
}

/// How each option begins.
const NIC_OPTIONS: [&str; 3] = ["/mtu=", "/fdir=", "/rss="];
/// The one word that may follow `/rss=`.
const SYMMETRIC: &str = "symmetric";

/// How many flow director filters there is room for. The NIC takes the memory from what holds received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FdirFilters {
    /// Some 2000, in 64 KiB.
    K2,
    /// Some 4000, in 128 KiB.
    K4,
    /// Some 8000, in 256 KiB.
    K8,
}

impl FdirFilters {
    /// All, the least first.
    pub const ALL: [Self; 3] = [Self::K2, Self::K4, Self::K8];

    /// As it stands in a port's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::K2 => "2k",
            Self::K4 => "4k",
            Self::K8 => "8k",
        }
    }
}

/// What a port is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PortName {
    /// `xdp:eth1`, `xdp:eth1/4`, `xdp:eth1/4/rx`: AF_XDP on a kernel interface, or on one queue of it.
    Xdp {
        /// The kernel's interface.
        interface: String,
        /// Which of its queues.
        queues: QueueChoice,
    },
    /// `packet:eth1`: AF_PACKET; sees a copy, takes nothing.
    Packet {
        /// The kernel's interface.
        interface: String,
    },
    /// `tap:NAME`: a TAP interface, made when it does not exist.
    Tap {
        /// The interface's name.
        interface: String,
    },
    /// `pci:0000:03:00.0`, `pci:0000:03:00.0/mtu=9000`: a NIC taken from the kernel's driver, driven by our own.
    Pci {
        /// Its address on the PCI bus.
        address: String,
        /// What it is opened with.
        options: NicOptions,
    },
    /// `vfio-user:SOCKET`, `vfio-user:SOCKET/mtu=9000`: a PCI device behind a Unix socket, driven by our own driver.
    VfioUser {
        /// The socket's path.
        socket: String,
        /// As of `pci:`.
        options: NicOptions,
    },
    /// `pcap:FILE`: a capture file, read or written by its place; `pcap:-` is standard input or output.
    Pcap {
        /// The file's name.
        file: String,
    },
    /// `null:`: gives empty packets without end, takes all.
    Null,
    /// `loop:NAME`: a ring in memory; two opens of one name in one process are its two ends.
    Loop {
        /// Any name.
        name: String,
    },
    /// `link:/run/x.sock`: a wire between two processes through shared memory.
    Link {
        /// The socket by which they find each other.
        path: String,
    },
}

/// Why a text is no port's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No known kind in front of the colon.
    #[error("'{0}' is not a port: write KIND:NAME, where KIND is one of {KINDS}")]
    Kind(String),
    /// The kind needs a name.
    #[error("'{0}' names no interface: write {0}eth1, say")]
    Empty(String),
    /// `tap:` needs the name of an interface, which is made where there is none.
    #[error("'tap:' names no interface: write tap:tap0, say, which is made if it is not there")]
    NoTap,
    /// `loop:` needs a name.
    #[error("'loop:' has no name: write loop:a, say; two ports with the same name are its two ends")]
    NoName,
    /// `pcap:` needs a file.
    #[error("'pcap:' names no file: write pcap:trace.pcapng, say, or pcap:- for standard input or output")]
    NoFile,
    /// `pci:` needs an address.
    #[error("'pci:' names no device: write pci:0000:03:00.0, say; lspci -D lists them")]
    NoAddress,
    /// `vfio-user:` needs a socket.
    #[error("'vfio-user:' names no socket: write vfio-user:nic.sock, say, where a device is served")]
    NoDevice,
    /// `link:` needs a socket.
    #[error(
        "'link:' names no socket: write link:/run/x.sock, say; two processes with the same path are its two ends"
    )]
    NoSocket,
    /// `null:` takes none.
    #[error("'{0}' takes no name")]
    NotEmpty(String),
    /// What follows `/mtu=` is none.
    #[error(
        "'{0}' is no MTU of a NIC's: write {1}/mtu=9000, say; {lo} to {hi} bytes",
        lo = MTUS.start(),
        hi = MTUS.end()
    )]
    Mtu(String, String),
    /// What follows `/fdir=` is no number of filters.
    #[error("'{0}' is no number of flow director filters: write {1}/fdir=2k, 4k or 8k")]
    Fdir(String, String),
    /// What follows `/rss=` is no way to spread packets.
    #[error("'{0}' is no way to spread packets over queues: write {1}/rss=symmetric, or leave /rss= out")]
    Rss(String, String),
    /// An option of a NIC's twice.
    #[error("'{0}' stands there twice: leave one out")]
    Twice(String),
    /// Not an interface's name.
    #[error(
        "'{0}' can't be an interface: at most 15 bytes, no blank, no '/', no ':', no '%', not '.' or '..'"
    )]
    Interface(String),
    /// What follows `/` is no queue.
    #[error("'{0}' is no queue: write xdp:{1}/4 for queue 4, xdp:{1}/4/rx for its receiving half")]
    Queue(String, String),
}

impl PortName {
    /// The kernel's interface that the port is of, if it is of one.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Xdp { interface, .. } | Self::Packet { interface } | Self::Tap { interface } => {
                Some(interface)
            }
            _ => None,
        }
    }
}

/// MTUs that a NIC can be given, in bytes. No packet of a shorter one is too long for the 82599 and the 82576, nor for those
/// who made Ethernet; one of a longer one does not fit.
pub const MTUS: RangeInclusive<u16> = 1500..=9710;

const KINDS: &str = "xdp:, packet:, tap:, pcap:, pci:, vfio-user:, null:, loop:, link:";

impl FromStr for PortName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (kind, name) = text.split_once(':').ok_or_else(|| NameError::Kind(text.into()))?;
        let need = || if name.is_empty() { Err(NameError::Empty(format!("{kind}:"))) } else { Ok(name) };
        match kind {
            "xdp" => {
                let mut parts = need()?.split('/');
                let interface = interface(parts.next().unwrap_or_default())?;
                let wrong = || NameError::Queue(name.into(), interface.clone());
                let queues = match (parts.next(), parts.next(), parts.next()) {
                    (None, ..) => QueueChoice::default(),
                    (Some(queue), half @ (None | Some("rx")), None) => QueueChoice {
                        queue: Some(queue.parse().map_err(|_| wrong())?),
                        rx_only: half.is_some(),
                    },
                    _ => return Err(wrong()),
                };
                Ok(Self::Xdp { interface, queues })
            }
            "packet" => Ok(Self::Packet { interface: interface(need()?)? }),
            "tap" if name.is_empty() => Err(NameError::NoTap),
            "tap" => Ok(Self::Tap { interface: interface(need()?)? }),
            "pci" => match nic(kind, name)? {
                ("", _) => Err(NameError::NoAddress),
                (address, options) => Ok(Self::Pci { address: address.into(), options }),
            },
            "vfio-user" => match nic(kind, name)? {
                ("", _) => Err(NameError::NoDevice),
                (socket, options) => Ok(Self::VfioUser { socket: socket.into(), options }),
            },
            "loop" if name.is_empty() => Err(NameError::NoName),
            "loop" => Ok(Self::Loop { name: name.into() }),
            "link" if name.is_empty() => Err(NameError::NoSocket),
            "link" => Ok(Self::Link { path: name.into() }),
            "pcap" if name.is_empty() => Err(NameError::NoFile),
            "pcap" => Ok(Self::Pcap { file: name.into() }),
            "null" if name.is_empty() => Ok(Self::Null),
            "null" => Err(NameError::NotEmpty("null:".into())),
            _ => Err(NameError::Kind(text.into())),
        }
    }
}

/// A NIC's own name, and the options behind it. Nothing lies below a socket: they are not part of its path.
fn nic<'a>(kind: &str, name: &'a str) -> Result<(&'a str, NicOptions), NameError> {
    let mut options = NicOptions::default();
    let mut device = name;
    while let Some(at) = NIC_OPTIONS.iter().filter_map(|option| device.rfind(option)).max() {
        let option = &device[at..];
        device = &device[..at];
        let whole = || format!("{kind}:{device}");
        let is_new = if let Some(text) = option.strip_prefix("/mtu=") {
            let mtu = text.parse().ok().filter(|mtu| MTUS.contains(mtu));
            options.mtu.replace(mtu.ok_or_else(|| NameError::Mtu(text.into(), whole()))?).is_none()
        } else if let Some(text) = option.strip_prefix("/rss=") {
            if text != SYMMETRIC {
                return Err(NameError::Rss(text.into(), whole()));
            }
            !std::mem::replace(&mut options.symmetric, true)
        } else {
            let text = &option["/fdir=".len()..];
            let fdir = FdirFilters::ALL.into_iter().find(|filters| filters.name() == text);
            options.fdir.replace(fdir.ok_or_else(|| NameError::Fdir(text.into(), whole()))?).is_none()
        };
        if !is_new {
            return Err(NameError::Twice(option.into()));
        }
    }
    Ok((device, options))
}

/// The kernel's own rule for names (`dev_valid_name`), and no `%`: whoever makes an interface writes `%d` for a number of the kernel's
/// choice, so none is called so.
fn interface(name: &str) -> Result<String, NameError> {
    let bad = name.is_empty()
        || name.len() > 15
        || matches!(name, "." | "..")
        || name.contains(|c: char| c.is_whitespace() || matches!(c, '/' | ':' | '%' | '\0'));
    if bad { Err(NameError::Interface(name.into())) } else { Ok(name.into()) }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xdp { interface, queues } => {
                write!(f, "xdp:{interface}")?;
                if let Some(queue) = queues.queue {
                    write!(f, "/{queue}{}", if queues.rx_only { "/rx" } else { "" })?;
                }
                Ok(())
            }
            Self::Packet { interface } => write!(f, "packet:{interface}"),
            Self::Tap { interface } => write!(f, "tap:{interface}"),
            Self::Pci { address, options } => write!(f, "pci:{address}{options}"),
            Self::VfioUser { socket, options } => write!(f, "vfio-user:{socket}{options}"),
            Self::Pcap { file } => write!(f, "pcap:{file}"),
            Self::Null => f.write_str("null:"),
            Self::Loop { name } => write!(f, "loop:{name}"),
            Self::Link { path } => write!(f, "link:{path}"),
        }
    }
}

impl fmt::Display for NicOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mtu.map_or(Ok(()), |mtu| write!(f, "/mtu={mtu}"))?;
        self.fdir.map_or(Ok(()), |filters| write!(f, "/fdir={}", filters.name()))?;
        if self.symmetric { write!(f, "/rss={SYMMETRIC}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_right_print_as_they_were_written() {
        for text in [
            "xdp:eth1",
            "xdp:eth1/4",
            "xdp:eth1/4/rx",
            "packet:enp3s0.7",
            "tap:bw0",
            "pci:0000:03:00.0",
            "pci:0000:03:00.0/mtu=1500",
            "vfio-user:nic.sock/mtu=9710",
            "pci:0000:03:00.0/fdir=2k",
            "vfio-user:nic.sock/mtu=9710/fdir=8k",
            "pci:0000:03:00.0/rss=symmetric",
            "vfio-user:nic.sock/mtu=9710/fdir=8k/rss=symmetric",
            "vfio-user:/run/symmetric",
            "vfio-user:/run/a b/nic.sock",
            "null:",
            "loop:a b",
            "link:/run/x.sock",
            "pcap:/tmp/a:b.pcapng",
            "pcap:-",
            "xdp:e-1",
        ] {
            assert_eq!(text.parse::<PortName>().unwrap().to_string(), text);
        }
        let turned: PortName = "pci:a/fdir=4k/mtu=9000".parse().unwrap();
        assert_eq!(turned.to_string(), "pci:a/mtu=9000/fdir=4k");
        let turned: PortName = "pci:a/rss=symmetric/fdir=4k".parse().unwrap();
        assert_eq!(turned.to_string(), "pci:a/fdir=4k/rss=symmetric");
    }

    #[test]
    fn each_wrong_name_is_refused_for_its_own_reason() {
        let error = |text: &str| text.parse::<PortName>().unwrap_err();
        assert_eq!(error("eth1"), NameError::Kind("eth1".into()));
        assert_eq!(error("dpdk:eth1"), NameError::Kind("dpdk:eth1".into()));
        assert_eq!(error("xdp:"), NameError::Empty("xdp:".into()));
        assert_eq!(error("link:"), NameError::NoSocket);
        assert_eq!(error("pci:"), NameError::NoAddress);
        assert_eq!(error("loop:"), NameError::NoName);
        assert_eq!(error("tap:"), NameError::NoTap);
        assert_eq!(error("vfio-user:"), NameError::NoDevice);
        assert_eq!(error("vfio-user:/mtu=9000"), NameError::NoDevice);
        assert_eq!(error("pci:/mtu=9000"), NameError::NoAddress);
        assert_eq!(error("pcap:"), NameError::NoFile);
        assert_eq!(error("null:x"), NameError::NotEmpty("null:".into()));
        assert_eq!(error("tap:."), NameError::Interface(".".into()));
        assert_eq!(error("tap:0123456789abcdef"), NameError::Interface("0123456789abcdef".into()));
        assert_eq!(error("packet:a b"), NameError::Interface("a b".into()));
        assert_eq!(error("tap:foo%d"), NameError::Interface("foo%d".into()));
        for mtu in ["", "x", "1499", "9711", "65536", "-1", "1500/rx"] {
            assert_eq!(error(&format!("pci:a/mtu={mtu}")), NameError::Mtu(mtu.into(), "pci:a".into()));
        }
        for filters in ["", "2", "3k", "16k", "2K"] {
            assert_eq!(
                error(&format!("pci:a/fdir={filters}")),
                NameError::Fdir(filters.into(), "pci:a".into())
            );
        }
        for word in ["", "toeplitz", "Symmetric", "symmetric/rx"] {
            assert_eq!(error(&format!("pci:a/rss={word}")), NameError::Rss(word.into(), "pci:a".into()));
        }
        assert_eq!(
            error("pci:a/rss=symmetric/mtu=9000/rss=symmetric"),
            NameError::Twice("/rss=symmetric".into())
        );
        assert_eq!(error("pci:a/fdir=2k/mtu=9000/fdir=4k"), NameError::Twice("/fdir=2k".into()));
        assert_eq!(error("pci:a/mtu=9000/mtu=9000"), NameError::Twice("/mtu=9000".into()));
        assert_eq!(error("vfio-user:/fdir=2k"), NameError::NoDevice);
        let words = "'9711' is no MTU of a NIC's: write vfio-user:a/b/mtu=9000, say; 1500 to 9710 bytes";
        assert_eq!(error("vfio-user:a/b/mtu=9711").to_string(), words);
        for queue in ["xdp:e/", "xdp:e/x", "xdp:e/65536", "xdp:e/1/tx", "xdp:e/1/rx/", "xdp:e/-1"] {
            assert!(matches!(error(queue), NameError::Queue(..)), "{queue}");
        }
    }
}
