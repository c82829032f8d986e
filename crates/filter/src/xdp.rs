//! The XDP program that takes packets from the kernel, or leaves them to it.
//!
//! One program serves all queues of an interface. What becomes of a packet:
//!
//! ```text
//!     on the never-take list? ── yes ──► XDP_PASS, counted as never_take
//!     matched by the rule?    ── no ───► XDP_PASS, counted as left
//!     has it a worker?        ── no ───► XDP_PASS, counted as no_socket
//!     is the worker alive?    ── no ───► XDP_PASS, counted as hung
//!     too long for a socket?  ── yes ──► XDP_PASS, counted as too_long
//!     is a socket there?      ── no ───► XDP_PASS, counted as no_socket
//!     bpf_redirect_map        ─────────► XDP_REDIRECT, counted as taken
//! ```
//!
//! A worker shows that it is alive by changing a number in memory that it shares with the program ([`Heartbeat`]). When
//! the number stays as it is for too long, its packets go to the kernel: a program that hangs must not take a machine off
//! the net.
//!
//! The program reads packets where the driver put their first buffer. Of a packet in several buffers only what is in the
//! first can be matched; counted bytes and `len` are of the whole packet. It runs on kernels from 5.18 on.

mod buff;
mod live;

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use crate::ebpf::{
    AssembleError, Assembler, Bases, Condition, Helper, Label, Operation, Program, Register, Width, filter,
};
pub use buff::XdpBuff;
pub use live::LiveFrames;

use crate::{Expression, Hook, NoNames, Options};

/// What an interface's XDP program shall do.
#[derive(Clone, Debug)]
pub struct Steering<'a> {
    /// Which packets are ours.
    pub take: Take<'a>,
    /// Packets that stay with the kernel even so.
    pub never_take: Option<NeverTake>,
    /// The maps it works with.
    pub maps: Maps,
    /// How many jiffies a worker may be silent before its packets go to the kernel.
    pub hung_after_jiffies: u64,
    /// Where it is known: how a packet's length is found without a call.
    pub buff: Option<XdpBuff>,
}

/// Which packets are ours.
#[derive(Clone, Copy, Debug)]
pub enum Take<'a> {
    /// All of them.
    All,
    /// Those that match.
    Matching(&'a Expression),
}

/// Packets without which a machine is lost: address resolution (ARP; neighbour discovery, ICMPv6 133 to 137 of hop limit 255), all that
/// comes from or goes to a default gateway's own address, the connection by which the operator is logged in, and what others send who are
/// logged in. They are found behind any number of VLAN tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeverTake {
    /// Addresses of the default gateways.
    pub gateways: Vec<IpAddr>,
    /// The operator's connection: the two ends of one TCP connection, in any order.
    pub operator: Option<(SocketAddr, SocketAddr)>,
    /// Connections of others who are logged in: their end, and this machine's.
    pub sessions: Vec<(SocketAddr, SocketAddr)>,
}

/// File descriptors of the maps, and what lies in them. A program that was loaded keeps the maps themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maps {
    /// `BPF_MAP_TYPE_XSKMAP`: the socket of each queue. Not used at TCX.
    pub sockets: RawFd,
    /// Bytes of the longest packet that sockets take.
    pub longest: u32,
    /// `BPF_MAP_TYPE_ARRAY` with `BPF_F_MMAPABLE` and one entry: a [`Heartbeat`] for each queue, one behind the other.
    pub heartbeat: RawFd,
    /// How many heartbeats there are; one at TCX.
    pub queues: u32,
    /// Packets of other queues, which an interface may get later, are decided about as long as the first one's worker is alive; else
    /// they have no worker. They have no socket either way.
    pub decides_others: bool,
    /// `BPF_MAP_TYPE_PERCPU_ARRAY`, a [`Count`] for each [`Verdict`], for flows, at [`LOST_SAMPLES`], and from [`RULES_AT`] on for each
    /// rule.
    pub counters: RawFd,
}

/// What the worker and the program tell each other, for each queue. The worker only writes `beat`, and changes it at least
/// once before the first packet; a `beat` of 0 means that there is no worker.
///
/// The program looks at `beat` only now and then, and what it reads for each packet lies in another line of the cache: else
/// each beat would make its core wait for the worker's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Heartbeat {
    /// Changed by the worker again and again.
    pub beat: u64,
    _line: [u64; 7],
    /// The program's: until when it does not look at `beat` again, in jiffies, since it has found the worker alive.
    pub until: u64,
    /// The program's: the `beat` it saw last.
    pub seen: u64,
    /// The program's: until when that one is no sign of a hang, in jiffies.
    pub alive: u64,
}

/// From one heartbeat to the next: two to the power of this.
const HEARTBEAT_SHIFT: u32 = size_of::<Heartbeat>().trailing_zeros();
const _: () = assert!(size_of::<Heartbeat>().is_power_of_two());

/// How many times the program looks at a heartbeat while a silent worker does not count as hung yet.
const LOOKS: u64 = 8;

/// What became of packets; the index into the map of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Verdict {
    /// They are ours.
    Taken,
    /// The rule did not match: the kernel's.
    Left,
    /// On the never-take list: the kernel's.
    NeverTake,
    /// The worker was silent: the kernel's.
    Hung,
    /// No socket was there for the queue: the kernel's.
    NoSocket,
    /// Longer than sockets take, which would lose them: the kernel's.
    TooLong,
}

impl Verdict {
    /// All of them, in the order of their index.
    pub const ALL: [Self; 6] =
        [Self::Taken, Self::Left, Self::NeverTake, Self::Hung, Self::NoSocket, Self::TooLong];

    /// The last one.
    pub(crate) const LAST: Self = Self::ALL[Self::ALL.len() - 1];

    /// Its name, as counters are called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Left => "left",
            Self::NeverTake => "never_take",
            Self::Hung => "hung",
            Self::NoSocket => "no_socket",
            Self::TooLong => "too_long",
        }
    }
}

/// The counter of samples that the ring had no room for, behind those of verdicts and of flows.
pub const LOST_SAMPLES: u32 = 8;

/// Where the counters of rules begin in the map of counters, behind all others.
pub const RULES_AT: u32 = LOST_SAMPLES + 1;

/// One entry of the map of counters, for each CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Their bytes, without FCS, all buffers included.
    pub bytes: u64,
    /// Of a rule that draws samples: the packet that will be the next one, by how many there are then.
    pub next_sample: u64,
}

/// An XDP program returns this (`enum xdp_action` of `linux/bpf.h`): the packet is gone.
pub const XDP_DROP: i32 = 1;
/// An XDP program returns this: the packet is the kernel's.
pub const XDP_PASS: i32 = 2;
/// An XDP program returns this: the packet goes out of the interface that it came in by.
pub const XDP_TX: i32 = 3;
/// An XDP program returns this: the packet goes where the program has said.
pub const XDP_REDIRECT: i32 = 4;

/// Offset in `struct xdp_md` of `linux/bpf.h`: the packet's first byte.
pub const MD_DATA: i16 = 0;
/// Offset in `struct xdp_md`: the byte behind the packet's last.
pub const MD_DATA_END: i16 = 4;
pub(crate) const MD_INGRESS_IFINDEX: i16 = 12;
const MD_RX_QUEUE_INDEX: i16 = 16;

/// What is kept in registers that survive calls. Behind the expression the first two are free again.
pub(crate) const DATA: Register = Register::R6;
pub(crate) const DATA_END: Register = Register::R7;
pub(crate) const CONTEXT: Register = Register::R8;
pub(crate) const LENGTH: Register = Register::R9;
pub(crate) const BASES: Bases = Bases { data: DATA, data_end: DATA_END, length: LENGTH, tag: None };

/// The stack's first four bytes hold the key for a map.
pub(crate) const KEY: i16 = -4;

/// A program that leaves everything to the kernel.
pub fn pass_program() -> Program {
    let mut assembler = Assembler::new();
    assembler.mov(Register::R0, XDP_PASS);
    assembler.exit();
    assembler.finish_without_jumps()
}

/// A TCX program that moves every packet to where packets come in at another interface. By which queue of this one it came, which is
/// no queue of that one, it forgets: what receives it as packet steering (RPS), and what sends it on, go by its flow alone, as they do
/// with packets of [`LiveFrames`].
pub fn return_program(interface: u32) -> Program {
    /// `BPF_F_INGRESS`.
    const INGRESS: i32 = 1;
    /// Offset in `struct __sk_buff` of `linux/bpf.h`.
    const QUEUE_MAPPING: i16 = 12;
    let mut assembler = Assembler::new();
    assembler.mov(Register::R2, 0);
    assembler.store(Width::Word, Register::R1, QUEUE_MAPPING, Register::R2);
    assembler.number(Register::R1, interface.into());
    assembler.mov(Register::R2, INGRESS);
    assembler.call(Helper::Redirect);
    assembler.exit();
    assembler.finish_without_jumps()
}

/// A program that returns one verdict for what matches and another for the rest (`XDP_DROP` is 1, `XDP_PASS` 2), and
/// counts nothing.
///
/// # Errors
/// When the expression is too long for one program.
pub fn verdict_program(
    expression: &Expression,
    matched: i32,
    otherwise: i32,
) -> Result<Program, AssembleError> {
    let mut assembler = Assembler::new();
    let [yes, no] = [(); 2].map(|()| assembler.label());
    Hook::Xdp.begin(&mut assembler, None);
    filter(&mut assembler, expression.graph(), BASES, yes, no);
    for (label, verdict) in [(yes, matched), (no, otherwise)] {
        assembler.place(label);
        assembler.mov(Register::R0, verdict);
        assembler.exit();
    }
    assembler.finish()
}

impl NeverTake {
    /// The list as an expression.
    pub fn expression(&self) -> Expression {
        self.with_gateways("host")
    }

    /// The list without what others send to a gateway's address: that is for this machine only where it passes packets on.
    pub fn sent(&self) -> Expression {
        self.with_gateways("src host")
    }

    fn with_gateways(&self, as_what: &str) -> Expression {
        let text = format!("anyvlan and ({})", self.untagged(as_what));
        match Expression::new(&text, &Options { names: &NoNames, netmask: None }) {
            Ok(expression) => expression,
            // Numbers in places for numbers always make an expression; a test tries them all.
            Err(_) => Expression::nothing(),
        }
    }

    /// The list as it is written of packets without tags.
    pub(crate) fn untagged(&self, as_what: &str) -> String {
        // What has come through a router is none of theirs (RFC 4861, 6.1 and 7.1): it may be a flood.
        let neighbours = "icmp6 and ip6[40] >= 133 and ip6[40] <= 137 and ip6[7] = 255";
        let mut parts = vec!["arp".to_string(), neighbours.into()];
        parts.extend(self.gateways.iter().map(|gateway| format!("{as_what} {gateway}")));
        if let Some((one, other)) = self.operator {
            let way = |from: SocketAddr, to: SocketAddr| {
                format!(
                    "tcp src port {} and dst port {} and src host {} and dst host {}",
                    from.port(),
                    to.port(),
                    from.ip(),
                    to.ip()
                )
            };
            parts.extend([way(one, other), way(other, one)]);
        }
        parts.extend(self.sessions_by_server());
        format!("({})", parts.join(") or ("))
    }

    /// What comes by the sessions of others. Most of them are with one port, so that other packets are asked for that alone.
    fn sessions_by_server(&self) -> impl Iterator<Item = String> {
        let mut clients = BTreeMap::<SocketAddr, Vec<String>>::new();
        for (client, server) in &self.sessions {
            let client = format!("src port {} and src host {}", client.port(), client.ip());
            clients.entry(*server).or_default().push(client);
        }
        clients.into_iter().map(|(server, clients)| {
            let (port, address, clients) = (server.port(), server.ip(), clients.join(") or ("));
            format!("tcp dst port {port} and dst host {address} and (({clients}))")
        })
    }
}

impl Steering<'_> {
    /// The program.
    ///
    /// # Errors
    /// When the expression is too long for one program.
    pub fn program(&self) -> Result<Program, AssembleError> {
        let mut assembler = Assembler::new();
        let exits = Exits::new(&mut assembler);
        Hook::Xdp.begin(&mut assembler, self.buff);
        if let Some(never_take) = &self.never_take {
            let ours = assembler.label();
            filter(
                &mut assembler,
                never_take.expression().graph(),
                BASES,
                exits.of(Verdict::NeverTake),
                ours,
            );
            assembler.place(ours);
        }
        if let Take::Matching(expression) = self.take {
            let ours = assembler.label();
            filter(&mut assembler, expression.graph(), BASES, ours, exits.of(Verdict::Left));
            assembler.place(ours);
        }
        check_heartbeat(&mut assembler, &self.maps, self.hung_after_jiffies, Hook::Xdp, &exits);
        redirect(&mut assembler, &self.maps, &exits);
        leave(&mut assembler, Hook::Xdp, &exits);
        count(&mut assembler, &self.maps, &exits);
        end(&mut assembler);
        assembler.finish()
    }
}

/// Goes on when the worker of the packet's queue is alive. Needs only the context, and uses r0 to r5. At TCX one worker
/// speaks for all queues, at XDP the first one for those that have come later, if it is to.
pub(crate) fn check_heartbeat(
    assembler: &mut Assembler,
    maps: &Maps,
    hung_after_jiffies: u64,
    hook: Hook,
    exits: &Exits,
) {
    const ENTRY: Register = Register::R3;
    const NOW: Register = Register::R0;
    let [beat, until, seen, alive] = [
        offset_of!(Heartbeat, beat),
        offset_of!(Heartbeat, until),
        offset_of!(Heartbeat, seen),
        offset_of!(Heartbeat, alive),
    ]
    .map(|offset| i16::try_from(offset).unwrap_or(0));
    let [changed, silent, done] = [(); 3].map(|()| assembler.label());
    assembler.call(Helper::Jiffies);
    if hook == Hook::Xdp {
        assembler.load(Width::Word, Register::R1, CONTEXT, MD_RX_QUEUE_INDEX);
        if maps.decides_others {
            let has_one = assembler.label();
            assembler.jump_if32(Register::R1, Condition::Less, maps.queues, has_one);
            assembler.mov(Register::R1, 0);
            assembler.place(has_one);
        } else {
            let none = exits.of(Verdict::NoSocket);
            assembler.jump_if32(Register::R1, Condition::GreaterOrEqual, maps.queues, none);
        }
    }
    assembler.map_value(ENTRY, maps.heartbeat, 0);
    if hook == Hook::Xdp && maps.queues > 1 {
        assembler.operate(Operation::ShiftLeft, Register::R1, HEARTBEAT_SHIFT);
        assembler.operate(Operation::Add, ENTRY, Register::R1);
    }
    let is_until = |assembler: &mut Assembler, field: i16, to: Label| {
        assembler.load(Width::Double, Register::R1, ENTRY, field);
        assembler.jump_if(NOW, Condition::LessOrEqual, Register::R1, to);
    };
    let set = |assembler: &mut Assembler, field: i16, from_now: u64| {
        assembler.number(Register::R2, from_now);
        assembler.operate(Operation::Add, Register::R2, NOW);
        assembler.store(Width::Double, ENTRY, field, Register::R2);
    };
    is_until(assembler, until, done);
    assembler.load(Width::Double, Register::R1, ENTRY, beat);
    assembler.jump_if(Register::R1, Condition::Equal, 0, exits.of(Verdict::NoSocket));
    assembler.load(Width::Double, Register::R2, ENTRY, seen);
    assembler.jump_if(Register::R1, Condition::NotEqual, Register::R2, changed);
    is_until(assembler, alive, silent);
    assembler.jump(exits.of(Verdict::Hung));
    assembler.place(changed);
    // First until when, then what: another CPU may look at the same time.
    set(assembler, alive, hung_after_jiffies);
    assembler.store(Width::Double, ENTRY, seen, Register::R1);
    assembler.place(silent);
    set(assembler, until, hung_after_jiffies / LOOKS);
    assembler.place(done);
}

/// Gives the packet to the socket of its queue.
pub(crate) fn redirect(assembler: &mut Assembler, maps: &Maps, exits: &Exits) {
    assembler.jump_if32(LENGTH, Condition::Greater, maps.longest, exits.of(Verdict::TooLong));
    assembler.map(Register::R1, maps.sockets);
    assembler.load(Width::Word, Register::R2, CONTEXT, MD_RX_QUEUE_INDEX);
    // Without a socket the function returns this, and the packet stays with the kernel.
    assembler.mov(Register::R3, XDP_PASS);
    assembler.call(Helper::RedirectMap);
    assembler.jump_if(Register::R0, Condition::NotEqual, XDP_REDIRECT, exits.of(Verdict::NoSocket));
    verdict(assembler, XDP_REDIRECT, Verdict::Taken);
    assembler.jump(exits.count);
}

/// The ways out that leave a packet to the kernel.
pub(crate) fn leave(assembler: &mut Assembler, hook: Hook, exits: &Exits) {
    for kind in Verdict::ALL.into_iter().filter(|kind| *kind != Verdict::Taken) {
        assembler.place(exits.of(kind));
        verdict(assembler, hook.passes(), kind);
        assembler.jump(exits.count);
    }
}

/// Counts the packet under the key on the stack.
pub(crate) fn count(assembler: &mut Assembler, maps: &Maps, exits: &Exits) {
    assembler.place(exits.count);
    add_to_counter(assembler, maps.counters);
    assembler.place(exits.end);
}

/// Ends with the result.
pub(crate) fn end(assembler: &mut Assembler) {
    assembler.mov(Register::R0, RESULT);
    assembler.exit();
}

/// Counts the packet under the key on the stack, in the map of counters. Uses r0 to r5.
pub(crate) fn add_to_counter(assembler: &mut Assembler, counters: RawFd) {
    add_to_counter_of(assembler, counters, KEY);
}

/// The same under a key elsewhere on the stack.
pub(crate) fn add_to_counter_of(assembler: &mut Assembler, counters: RawFd, key: i16) {
    let end = assembler.label();
    lookup(assembler, counters, key);
    assembler.jump_if(Register::R0, Condition::Equal, 0, end);
    for (field, more) in [(0, None), (8, Some(LENGTH))] {
        assembler.load(Width::Double, Register::R1, Register::R0, field);
        match more {
            Some(bytes) => assembler.operate(Operation::Add, Register::R1, bytes),
            None => assembler.operate(Operation::Add, Register::R1, 1),
        }
        assembler.store(Width::Double, Register::R0, field, Register::R1);
    }
    assembler.place(end);
}

/// What the program will return, once it has counted.
pub(crate) const RESULT: Register = Register::R7;

fn verdict(assembler: &mut Assembler, result: i32, kind: Verdict) {
    assembler.mov(RESULT, result);
    assembler.store(Width::Word, Register::R10, KEY, kind as u32);
}

/// r0 = the entry of a map whose key is on the stack, or 0.
pub(crate) fn lookup(assembler: &mut Assembler, map: RawFd, key: i16) {
    assembler.mov(Register::R2, Register::R10);
    assembler.operate(Operation::Add, Register::R2, i32::from(key));
    assembler.map(Register::R1, map);
    assembler.call(Helper::MapLookup);
}

/// Where the program goes when a packet's fate is known.
pub(crate) struct Exits {
    verdicts: [Label; Verdict::ALL.len()],
    /// To the socket.
    pub(crate) take: Label,
    /// The result is known, and the counter's key is on the stack.
    pub(crate) count: Label,
    /// The result is known, and counted.
    pub(crate) end: Label,
}

impl Exits {
    pub(crate) fn new(assembler: &mut Assembler) -> Self {
        let verdicts = Verdict::ALL.map(|_| assembler.label());
        let [take, count, end] = [(); 3].map(|()| assembler.label());
        Self { verdicts, take, count, end }
    }

    pub(crate) fn of(&self, verdict: Verdict) -> Label {
        self.verdicts[verdict as usize]
    }

    /// All of them that there are.
    pub(crate) fn all(&self, hook: Hook) -> impl Iterator<Item = Label> {
        let kept = Verdict::ALL.into_iter().filter(|kind| *kind != Verdict::Taken).map(|kind| self.of(kind));
        let take = (hook == Hook::Xdp).then_some(self.take);
        kept.chain([self.count, self.end]).chain(take)
    }
}
