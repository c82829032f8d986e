//! What a seed means: who does what, in which order, and what becomes of the packets. Nothing else decides it.

use bywash_stack::{CongestionControl, Limits};

use crate::random::Random;

/// Seeds that share a link, a kernel and a stack: those of one multiple of it.
pub(crate) const GROUP: u64 = 128;

/// What happens to packets besides being late: one thing alone, or those together that a seed draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Loss,
    Reordering,
    Duplication,
    Corruption,
    Drawn,
}

impl Fault {
    pub(crate) const ALL: [Self; 5] =
        [Self::Loss, Self::Reordering, Self::Duplication, Self::Corruption, Self::Drawn];

    /// The bits of [`chances`] that stand for it.
    fn bits(self, drawn: usize) -> usize {
        match self {
            Self::Loss => 1,
            Self::Reordering => 2,
            Self::Duplication => 4,
            Self::Corruption => 8,
            Self::Drawn => drawn,
        }
    }
}

/// How the stack reaches the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Tap,
    /// AF_XDP on the other end of a veth.
    Xdp,
    /// AF_PACKET there.
    Packet,
}

/// What the seeds of a group have in common.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) way: Way,
    pub(crate) mtu: u16,
    pub(crate) ipv6: bool,
    /// Of 1024 packets each way, those that a BPF program on the kernel's interface drops.
    pub(crate) dropped: i32,
    pub(crate) seed: u64,
    /// The kernel's, and its settings `net.ipv4.tcp_*` below.
    pub(crate) congestion_control: &'static str,
    pub(crate) timestamps: u8,
    pub(crate) sack: bool,
    pub(crate) window_scaling: bool,
    pub(crate) ecn: u8,
}

impl Link {
    /// Each fault has a link of its own: the same seeds meet several ways and MTUs.
    pub(crate) fn draw(group: u64, fault: Fault) -> Self {
        let number = group * Fault::ALL.len() as u64 + fault as u64;
        let mut random = Random::new(!number);
        let mtu = random.one_of(&[576, 9000, 1500, 576 + random.clone().below(8425)]);
        Self {
            way: [Way::Xdp, Way::Tap, Way::Packet][usize::try_from(number % 3).expect("small")],
            mtu: u16::try_from(mtu).expect("at most 9000"),
            // RFC 8200, 5: no link of it has less.
            ipv6: random.happens(500) && mtu >= 1280,
            dropped: match fault {
                Fault::Loss => random.one_of(&[10, 30]),
                Fault::Drawn => random.one_of(&[0, 10, 30]),
                _ => 0,
            },
            seed: random.next(),
            congestion_control: random.one_of(&["cubic", "reno", "bbr"]),
            timestamps: random.one_of(&[1, 1, 0]),
            sack: random.happens(700),
            window_scaling: random.happens(700),
            ecn: random.one_of(&[2, 1, 0]),
        }
    }
}

/// What becomes of packets one way, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chances {
    pub(crate) loss: usize,
    pub(crate) reorder: usize,
    pub(crate) duplicate: usize,
    pub(crate) corrupt: usize,
}

/// Who says first that it has said all. The other one goes on until it has heard that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    Either,
    Ours,
    Kernel,
}

/// What one end does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// Bytes it sends.
    pub(crate) length: usize,
    /// Bytes it writes at once at most.
    pub(crate) writes: usize,
    /// Bytes it reads at once at most.
    pub(crate) reads: usize,
    /// How long it waits after that, milliseconds.
    pub(crate) pause: u64,
}

impl End {
    fn draw(random: &mut Random) -> Self {
        let longest = random.one_of(&[1, 2000, 60_000, 60_000, 120_000]);
        let slow = random.happens(200);
        Self {
            length: random.below(longest + 1),
            writes: random.one_of(&[1 << 17, 5000, 700]),
            reads: if slow { 3000 } else { 1 << 16 },
            pause: if slow { 5 } else { 0 },
        }
    }
}

/// One connection.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) we_open: bool,
    pub(crate) first: First,
    pub(crate) ours: End,
    pub(crate) kernel: End,
    /// `SO_RCVBUF` and `SO_SNDBUF`; 0 leaves them alone.
    pub(crate) kernel_buffers: [usize; 2],
    pub(crate) to_kernel: Chances,
    pub(crate) from_kernel: Chances,
    pub(crate) limits: Limits,
}

impl Case {
    pub(crate) fn draw(seed: u64, fault: Fault) -> Self {
        let mut random = Random::new(seed);
        let faults = fault.bits(random.one_of(&[0, 3, 5, 9, 15, random.clone().below(16)]));
        Self {
            seed,
            we_open: random.happens(500),
            first: random.one_of(&[First::Either, First::Ours, First::Kernel]),
            ours: End::draw(&mut random),
            kernel: End::draw(&mut random),
            kernel_buffers: [random.one_of(&[0, 0, 4096, 20_000]), random.one_of(&[0, 0, 4096, 20_000])],
            to_kernel: chances(faults, &mut random),
            from_kernel: chances(faults, &mut random),
            limits: limits(&mut random),
        }
    }

    /// The port at both ends' listeners, which tells its packets from others'.
    pub(crate) fn port(&self) -> u16 {
        PORTS + u16::try_from(self.seed % GROUP).expect("below the group's size")
    }
}

/// Where a group's ports begin: below those that either end takes by itself.
const PORTS: u16 = 10_000;

/// Which of a group's seeds has a port.
pub(crate) fn seed_of(port: u16) -> Option<usize> {
    let index = usize::from(port.checked_sub(PORTS)?);
    (index < usize::try_from(GROUP).expect("small")).then_some(index)
}

/// How likely the faults are that the bits of `faults` stand for; several together are less of each.
fn chances(faults: usize, random: &mut Random) -> Chances {
    let together = usize::try_from(faults.count_ones().clamp(1, 3)).expect("small");
    let mut some = |bit: usize, most: usize| {
        let drawn = 1 + random.below(most);
        if faults & bit == 0 { 0 } else { drawn / together }
    };
    Chances { loss: some(1, 60), reorder: some(2, 300), duplicate: some(4, 200), corrupt: some(8, 60) }
}

fn limits(random: &mut Random) -> Limits {
    let usual = Limits::default();
    let (receive_initial, receive_max) =
        random.one_of(&[(usual.receive_initial, usual.receive_max), (3000, 20_000), (10_000, 200_000)]);
    let (send_initial, send_max) =
        random.one_of(&[(usual.send_initial, usual.send_max), (2000, 8000), (16_000, 200_000)]);
    Limits {
        receive_initial,
        receive_max,
        send_initial,
        send_max,
        congestion: random.one_of(&[CongestionControl::Cubic, CongestionControl::NewReno]),
        ecn: random.happens(300),
        window_scaling: random.happens(700),
        timestamps: random.happens(700),
        sack: random.happens(700),
        ..usual
    }
}

/// A byte of a stream, by its place: a receiver need not keep what it has compared.
pub(crate) fn stream(seed: u64, from_us: bool, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed ^ if from_us { 1 << 40 } else { 1 << 41 });
    let words = std::iter::repeat_with(|| random.next().to_le_bytes());
    words.take(length.div_ceil(8)).flatten().take(length).collect()
}

/// What has been received of a stream, compared with what was sent.
#[derive(Debug, Default)]
pub(crate) struct Received {
    expected: Vec<u8>,
    pub(crate) length: usize,
}

impl Received {
    pub(crate) fn of(expected: Vec<u8>) -> Self {
        Self { expected, length: 0 }
    }

    /// # Errors
    /// In words, when it is something else.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        let from = self.length;
        self.length += bytes.len();
        match self.expected.get(from..self.length) {
            Some(expected) if expected == bytes => Ok(()),
            Some(_) => Err(format!("bytes from {from} to {} are not those that were sent", self.length)),
            None => Err(format!("{} bytes, and {} were sent", self.length, self.expected.len())),
        }
    }

    pub(crate) fn is_all(&self) -> bool {
        self.length == self.expected.len()
    }
}
