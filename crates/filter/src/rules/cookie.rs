//! SYN cookies in XDP: a SYN is answered in the driver, and the kernel takes the ACK that comes back: its own listener, or, for servers on
//! other machines, netfilter's SYNPROXY.
//!
//! ```text
//!     SYN, a listener is there ──► SYN-ACK with the kernel's cookie, back out of the interface (XDP_TX)
//!     ACK, only a listener is there: with its cookie ──► the next rule; without ──► XDP_DROP
//!     SYN that is passed on to another machine, for SYNPROXY ──► SYN-ACK with the kernel's cookie, the same way
//!     everything else ──► the next rule
//! ```
//!
//! A listener on all addresses is found for those of other machines as well. So the packet must be for one of this machine's addresses,
//! by the interface's own MAC: behind one NIC there are others, macvlan, ipvlan and bridged guests, and a switch sends a port what is for
//! all, or for nobody that it knows. Where the machine forwards, routes say besides whether the packet stays here.
//!
//! The cookie is the one that the kernel would have sent (`bpf_tcp_gen_syncookie`), and making it so tells the listener to
//! expect it. The helpers that need no listener (`bpf_tcp_raw_gen_syncookie_ipv4`) do not, and a listener that has seen no
//! overflow lately refuses all cookies. SYNPROXY asks for no overflow, and there is no listener: for it they are the ones. With
//! `net.ipv4.tcp_syncookies` at 1 the kernel gives a listener's only while its queue is full, and the SYN goes on.
//!
//! A SYN with a signature (TCP-MD5, TCP-AO) goes on as well: nobody but the kernel has the key for its answer.
//!
//! A cookie holds the MSS. Window scale and SACK are kept in the lowest bits of our timestamp as the kernel does, which comes
//! back with the ACK: that takes a SYN with a timestamp, and a listener's kernel whose timestamps have no secret offset.
//!
//! What speaks for another machine offers no window, as SYNPROXY: the client's data waits until that machine has answered, too.

use super::forwarded::ROUTE;
use super::keys::OwnKey;
use super::program::{CONTEXT_AT, Coder};
use crate::ebpf::{Condition, Helper, Label, Operation, Register, Width};
use crate::plain::{NETWORK, Plain};
use crate::walk::Family;
use crate::xdp::{CONTEXT, DATA, DATA_END, LENGTH, MD_DATA, MD_DATA_END, Verdict, XDP_DROP, XDP_TX};

/// What an answer says of ourselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynCookies {
    /// The longest segments that we take, over IPv4 and over IPv6: the MTU without headers.
    pub mss: [u16; 2],
    /// The window scale that the kernel will use, where it takes options from timestamps; without it, the MSS is the only
    /// option.
    pub window_scale: Option<u8>,
}

impl SynCookies {
    /// Those for which the program is longest.
    pub const LONGEST: Self = Self { mss: [1460, 1440], window_scale: Some(7) };
}

/// What SYNPROXY says for servers on other machines, as its rule has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynProxy {
    /// The longest segments that they take.
    pub mss: u16,
    /// The window scale that they use, 14 at most.
    pub window_scale: u8,
}

/// A TCP header's flags.
const SYN: i32 = 0x02;
const ACK: i32 = 0x10;
const FIN_SYN_RST_ACK: i32 = 0x17;
const SYN_RST_ACK: i32 = 0x16;

/// Offsets in a TCP header.
const SEQ: i16 = 4;
const OFFSET: i16 = 12;
const FLAGS: i16 = 13;
const WINDOW: i16 = 14;
const CHECKSUM: i16 = 16;
/// Bytes of a TCP header without options.
const HEADER: i16 = 20;
/// Most bytes of its options.
const OPTIONS: i16 = 40;

/// The state of `struct bpf_sock`, and the one of a listener (`BPF_TCP_LISTEN`).
pub(super) const SOCKET_STATE: i16 = 72;
pub(super) const LISTEN: i32 = 10;

/// The stack: the SYN's TCP header, and before that what routes are asked; its length, the socket, a result; what its options say;
/// the answer's TCP header.
const HEADER_AT: i16 = -248;
/// Bytes of it.
pub(super) const STACK: usize = HEADER_AT.unsigned_abs() as usize;
const LEN_AT: i16 = -184;
const SOCKET_AT: i16 = -176;
const RESULT_AT: i16 = -168;
/// The lowest bits of our timestamp.
const KEPT_AT: i16 = -160;
/// The other side's timestamp, with a bit above it that says that there is one.
const STAMP_AT: i16 = -152;
const ANSWER_AT: i16 = -144;

/// In the lowest bits of a timestamp: no window scale; a window scale; SACK.
const NO_SCALE: i32 = 0xf;
const SACK: i32 = 0x10;
const KEPT: u32 = 0x3f;

/// Options that sign a segment: TCP-MD5 (RFC 2385) and TCP-AO (RFC 5925).
const MD5: i32 = 19;
const AUTHENTICATION: i32 = 29;

/// Most options that are looked at.
const MOST_OPTIONS: i32 = 20;

/// Bytes of the answer's TCP header: with the MSS alone, and with all options.
const PLAIN_ANSWER: i16 = HEADER + 4;
const FULL_ANSWER: i16 = HEADER + 20;

/// What an answer says besides the cookie.
#[derive(Clone, Copy)]
struct Answer {
    mss: u16,
    /// Zero or all ones: the same in any byte order.
    window: u16,
    /// The window scale, where options are kept.
    scale: Option<u8>,
}

impl Coder<'_> {
    /// Answers a SYN, drops an ACK without a cookie; all else goes on at `next`.
    pub(super) fn answer_syn(&mut self, slot: u32, next: Label) {
        let Some(plain) = self.plain.filter(Plain::is_tcp) else { return self.assembler.jump(next) };
        let settings = self.rules.cookies;
        let [look, syn, release] = [(); 3].map(|()| self.assembler.label());
        let tcp = at(plain.transport());
        self.assembler.load(Width::Byte, Register::R1, DATA, tcp + FLAGS);
        self.assembler.operate(Operation::And, Register::R1, FIN_SYN_RST_ACK);
        self.assembler.jump_if(Register::R1, Condition::Equal, SYN, look);
        self.assembler.operate(Operation::And, Register::R1, SYN_RST_ACK);
        self.assembler.jump_if(Register::R1, Condition::NotEqual, ACK, next);
        self.assembler.place(look);
        self.unless_own(plain, true, next);
        self.find_listener(plain, release, next);
        self.assembler.load(Width::Byte, Register::R1, DATA, tcp + FLAGS);
        self.assembler.jump_if(Register::R1, Condition::CommonBit, SYN, syn);
        self.with_headers(plain, |coder| {
            coder.assembler.mov(Register::R4, DATA);
            coder.assembler.operate(Operation::Add, Register::R4, i32::from(tcp));
            coder.assembler.mov(Register::R5, i32::from(HEADER));
            coder.assembler.call(Helper::CheckSynCookie);
        });
        self.assembler.jump_if(Register::R0, Condition::Equal, 0, next);
        self.end(slot, XDP_DROP, None);
        self.assembler.place(syn);
        self.copy_header(plain, release);
        self.read_options(release);
        self.with_headers(plain, |coder| {
            coder.assembler.mov(Register::R4, Register::R10);
            coder.assembler.operate(Operation::Add, Register::R4, i32::from(HEADER_AT));
            coder.assembler.load(Width::Double, Register::R5, Register::R10, LEN_AT);
            coder.assembler.call(Helper::MakeSynCookie);
        });
        let mss = settings.mss[usize::from(plain.family == Family::V6)];
        self.answer(plain, Answer { mss, window: u16::MAX, scale: settings.window_scale }, slot, next);
        self.assembler.place(release);
        self.release();
        self.assembler.jump(next);
    }

    /// Answers a SYN that is passed on to another machine; all else goes on at `next`.
    pub(super) fn answer_for_proxy(&mut self, proxy: SynProxy, slot: u32, next: Label) {
        let Some(plain) = self.plain.filter(Plain::is_tcp) else { return self.assembler.jump(next) };
        self.assembler.load(Width::Byte, Register::R1, DATA, at(plain.transport()) + FLAGS);
        self.assembler.operate(Operation::And, Register::R1, FIN_SYN_RST_ACK);
        self.assembler.jump_if(Register::R1, Condition::NotEqual, SYN, next);
        self.unless_own(plain, false, next);
        self.unless_passed_on(plain, HEADER_AT, next);
        self.copy_header(plain, next);
        self.read_options(next);
        self.assembler.mov(Register::R1, DATA);
        self.assembler.operate(Operation::Add, Register::R1, NETWORK);
        self.assembler.mov(Register::R2, Register::R10);
        self.assembler.operate(Operation::Add, Register::R2, i32::from(HEADER_AT));
        self.assembler.load(Width::Double, Register::R3, Register::R10, LEN_AT);
        self.assembler.call(match plain.family {
            Family::V4 => Helper::MakeRawSynCookie4,
            Family::V6 => Helper::MakeRawSynCookie6,
        });
        let SynProxy { mss, window_scale } = proxy;
        self.answer(plain, Answer { mss, window: 0, scale: Some(window_scale) }, slot, next);
    }

    /// Answers with the cookie in r0; goes to `next` when there is none.
    fn answer(&mut self, plain: Plain, answer: Answer, slot: u32, next: Label) {
        // A cookie has its MSS above; an error is negative.
        self.assembler.mov(Register::R1, Register::R0);
        self.assembler.operate(Operation::ShiftRight, Register::R1, 48);
        self.assembler.jump_if(Register::R1, Condition::NotEqual, 0, next);
        let short = self.assembler.label();
        self.begin_answer(plain, answer);
        if let Some(scale) = answer.scale {
            self.assembler.load(Width::Double, Register::R1, Register::R10, STAMP_AT);
            self.assembler.operate(Operation::ShiftRight, Register::R1, 32);
            self.assembler.jump_if(Register::R1, Condition::Equal, 0, short);
            self.write_options(scale);
            self.send(plain, FULL_ANSWER, slot);
        }
        self.assembler.place(short);
        self.send(plain, PLAIN_ANSWER, slot);
    }

    /// Goes to `other` when the packet is for another station, or, if its address is `asked`, for one that is not known to be this
    /// machine's.
    fn unless_own(&mut self, plain: Plain, asked: bool, other: Label) {
        let (address, len) = match plain.family {
            Family::V4 => (at(NETWORK) + 16, 4),
            Family::V6 => (at(NETWORK) + 24, 16),
        };
        let mut pieces = vec![(Width::Word, 0, 0), (Width::Half, 4, 4)];
        if asked {
            pieces.push((Width::Half, 12, 6));
            pieces.extend((0..len).step_by(4).map(|word| (Width::Word, address + word, 8 + word)));
        }
        for double in 0..3 {
            self.assembler.store(Width::Double, Register::R10, HEADER_AT + 8 * double, 0);
        }
        for (width, from, to) in pieces {
            self.assembler.load(width, Register::R1, DATA, from);
            self.assembler.store(width, Register::R10, HEADER_AT + to, Register::R1);
        }
        const { assert!(OwnKey::SIZE <= (LEN_AT - HEADER_AT) as usize) };
        self.lookup(HEADER_AT, self.rules.sets.own);
        self.assembler.jump_if(Register::R0, Condition::Equal, 0, other);
    }

    /// Puts the listener that the packet is for on the stack; `release` when it is for another socket or another machine, `next`
    /// for none.
    fn find_listener(&mut self, plain: Plain, release: Label, next: Label) {
        // Addresses and ports follow each other in the packet as the kernel wants them.
        let (addresses, size) = match plain.family {
            Family::V4 => (NETWORK + 12, 12),
            Family::V6 => (NETWORK + 8, 36),
        };
        self.assembler.load(Width::Double, Register::R1, Register::R10, CONTEXT_AT);
        self.assembler.mov(Register::R2, DATA);
        self.assembler.operate(Operation::Add, Register::R2, addresses);
        self.assembler.mov(Register::R3, size);
        // This namespace.
        self.assembler.mov(Register::R4, -1);
        self.assembler.mov(Register::R5, 0);
        self.assembler.call(Helper::FindTcpSocket);
        self.assembler.jump_if(Register::R0, Condition::Equal, 0, next);
        self.assembler.store(Width::Double, Register::R10, SOCKET_AT, Register::R0);
        self.assembler.load(Width::Word, Register::R1, Register::R0, SOCKET_STATE);
        self.assembler.jump_if(Register::R1, Condition::NotEqual, LISTEN, release);
        const { assert!(ROUTE <= LEN_AT - HEADER_AT) };
        self.unless_forwarded(plain, HEADER_AT, release);
    }

    /// Calls what takes a socket, an IP header and a TCP header, and releases the socket; its result is in r0.
    fn with_headers(&mut self, plain: Plain, call: impl FnOnce(&mut Self)) {
        self.assembler.load(Width::Double, Register::R1, Register::R10, SOCKET_AT);
        self.assembler.mov(Register::R2, DATA);
        self.assembler.operate(Operation::Add, Register::R2, NETWORK);
        self.assembler.mov(Register::R3, i32::from(at(plain.transport() - NETWORK)));
        call(self);
        self.assembler.store(Width::Double, Register::R10, RESULT_AT, Register::R0);
        self.release();
        self.assembler.load(Width::Double, Register::R0, Register::R10, RESULT_AT);
    }

    fn release(&mut self) {
        self.assembler.load(Width::Double, Register::R1, Register::R10, SOCKET_AT);
        self.assembler.call(Helper::ReleaseSocket);
    }

    /// Copies the TCP header to the stack, with zeros behind it; goes to `broken` when there is none of its length.
    fn copy_header(&mut self, plain: Plain, broken: Label) {
        let tcp = at(plain.transport());
        for double in 0..8 {
            self.assembler.store(Width::Double, Register::R10, HEADER_AT + 8 * double, 0);
        }
        let copied = self.assembler.label();
        self.assembler.load(Width::Byte, Register::R1, DATA, tcp + OFFSET);
        self.assembler.operate(Operation::ShiftRight, Register::R1, 4);
        self.assembler.operate(Operation::ShiftLeft, Register::R1, 2);
        self.assembler.jump_if(Register::R1, Condition::Less, i32::from(HEADER), broken);
        self.assembler.store(Width::Double, Register::R10, LEN_AT, Register::R1);
        for word in (0..HEADER + OPTIONS).step_by(4) {
            if word >= HEADER {
                self.assembler.jump_if(Register::R1, Condition::LessOrEqual, i32::from(word), copied);
                self.assembler.mov(Register::R2, DATA);
                self.assembler.operate(Operation::Add, Register::R2, i32::from(tcp + word + 4));
                self.assembler.jump_if(Register::R2, Condition::Greater, DATA_END, broken);
            }
            self.assembler.load(Width::Word, Register::R2, DATA, tcp + word);
            self.assembler.store(Width::Word, Register::R10, HEADER_AT + word, Register::R2);
        }
        self.assembler.place(copied);
    }

    /// Finds window scale, SACK and timestamp among the SYN's options; goes to `signed` when it is signed: the answer would have to be, too.
    fn read_options(&mut self, signed: Label) {
        const AT: Register = Register::R1;
        const KIND: Register = Register::R2;
        const HERE: Register = Register::R3;
        const LEN: Register = Register::R4;
        const END: Register = Register::R5;
        const PASSED: Register = Register::R0;
        let [again, pad, sack, scale, stamp, pass, next, done] = [(); 8].map(|()| self.assembler.label());
        for (slot, value) in [(KEPT_AT, NO_SCALE), (STAMP_AT, 0)] {
            self.assembler.mov(KIND, value);
            self.forget(KIND);
            self.assembler.store(Width::Double, Register::R10, slot, KIND);
        }
        self.assembler.load(Width::Double, END, Register::R10, LEN_AT);
        self.forget(END);
        self.assembler.mov(PASSED, 0);
        self.assembler.mov(AT, i32::from(HEADER));
        self.assembler.place(next);
        self.assembler.jump_if(AT, Condition::GreaterOrEqual, i32::from(HEADER + OPTIONS), done);
        self.forget(AT);
        self.assembler.operate(Operation::And, AT, 0x3f);
        self.assembler.operate(Operation::Add, PASSED, 1);
        self.assembler.jump_if(PASSED, Condition::LessOrEqual, MOST_OPTIONS, again);
        self.assembler.jump(done);
        self.assembler.place(again);
        self.assembler.jump_if(AT, Condition::GreaterOrEqual, END, done);
        self.assembler.mov(HERE, Register::R10);
        self.assembler.operate(Operation::Add, HERE, AT);
        self.assembler.load(Width::Byte, KIND, HERE, HEADER_AT);
        self.assembler.jump_if(KIND, Condition::Equal, 0, done);
        self.assembler.jump_if(KIND, Condition::Equal, 1, pad);
        // Behind the longest header there are four more zeros.
        self.assembler.load(Width::Byte, LEN, HERE, HEADER_AT + 1);
        self.assembler.jump_if(LEN, Condition::Less, 2, done);
        for (kind, label) in [(3, scale), (4, sack), (8, stamp), (MD5, signed), (AUTHENTICATION, signed)] {
            self.assembler.jump_if(KIND, Condition::Equal, kind, label);
        }
        self.assembler.place(pass);
        self.assembler.operate(Operation::Add, AT, LEN);
        self.assembler.jump(next);
        self.assembler.place(pad);
        self.assembler.operate(Operation::Add, AT, 1);
        self.assembler.jump(next);
        self.assembler.place(sack);
        self.assembler.load(Width::Double, KIND, Register::R10, KEPT_AT);
        self.assembler.operate(Operation::Or, KIND, SACK);
        self.assembler.store(Width::Double, Register::R10, KEPT_AT, KIND);
        self.assembler.jump(pass);
        self.assembler.place(scale);
        let small = self.assembler.label();
        self.assembler.load(Width::Byte, HERE, HERE, HEADER_AT + 2);
        // RFC 7323, 2.3: what is larger counts as 14.
        self.assembler.jump_if(HERE, Condition::LessOrEqual, 14, small);
        self.assembler.mov(HERE, 14);
        self.assembler.place(small);
        self.assembler.load(Width::Double, KIND, Register::R10, KEPT_AT);
        self.assembler.operate(Operation::And, KIND, SACK);
        self.assembler.operate(Operation::Or, KIND, HERE);
        self.assembler.store(Width::Double, Register::R10, KEPT_AT, KIND);
        self.assembler.jump(pass);
        self.assembler.place(stamp);
        self.assembler.jump_if(AT, Condition::Greater, i32::from(HEADER + OPTIONS - 10), done);
        self.assembler.mov(KIND, 1);
        for byte in 2..6 {
            self.assembler.operate(Operation::ShiftLeft, KIND, 8);
            self.assembler.load(Width::Byte, LEN, HERE, HEADER_AT + byte);
            self.assembler.operate(Operation::Or, KIND, LEN);
        }
        self.assembler.store(Width::Double, Register::R10, STAMP_AT, KIND);
        self.assembler.mov(LEN, 10);
        self.assembler.jump(pass);
        self.assembler.place(done);
    }

    /// Makes the verifier forget what it knows of a value, which stays the same: else it would follow the loop for each way in
    /// which its parts can be known.
    fn forget(&mut self, register: Register) {
        self.assembler.operate(Operation::Xor, register, LENGTH);
        self.assembler.operate(Operation::Xor, register, LENGTH);
    }

    /// The answer's header up to the MSS; the cookie is in r0.
    fn begin_answer(&mut self, plain: Plain, answer: Answer) {
        let tcp = at(plain.transport());
        for double in 0..5 {
            self.assembler.store(Width::Double, Register::R10, ANSWER_AT + 8 * double, 0);
        }
        for (to, from) in [(0, 2), (2, 0)] {
            self.assembler.load(Width::Half, Register::R1, DATA, tcp + from);
            self.assembler.store(Width::Half, Register::R10, ANSWER_AT + to, Register::R1);
        }
        self.assembler.from_network_order(Register::R0, Width::Word);
        self.assembler.store(Width::Word, Register::R10, ANSWER_AT + SEQ, Register::R0);
        self.assembler.load(Width::Word, Register::R1, DATA, tcp + SEQ);
        self.assembler.from_network_order(Register::R1, Width::Word);
        self.assembler.operate(Operation::Add, Register::R1, 1);
        self.assembler.from_network_order(Register::R1, Width::Word);
        self.assembler.store(Width::Word, Register::R10, ANSWER_AT + SEQ + 4, Register::R1);
        self.assembler.store(Width::Byte, Register::R10, ANSWER_AT + FLAGS, SYN | ACK);
        self.assembler.store(Width::Half, Register::R10, ANSWER_AT + WINDOW, i32::from(answer.window));
        let mss = answer.mss.to_be_bytes();
        self.write(HEADER, [2, 4, mss[0], mss[1]]);
    }

    /// Four bytes of the answer's header.
    fn write(&mut self, at: i16, bytes: [u8; 4]) {
        let word = i32::from_ne_bytes(bytes);
        self.assembler.store(Width::Word, Register::R10, ANSWER_AT + at, word);
    }

    /// SACK, timestamps and window scale, behind the MSS.
    fn write_options(&mut self, scale: u8) {
        let [no_sack, stamp, no_scale, written, earlier] = [(); 5].map(|()| self.assembler.label());
        self.assembler.load(Width::Double, Register::R1, Register::R10, KEPT_AT);
        self.assembler.operate(Operation::And, Register::R1, SACK);
        self.assembler.jump_if(Register::R1, Condition::Equal, 0, no_sack);
        self.write(HEADER + 4, [4, 2, 8, 10]);
        self.assembler.jump(stamp);
        self.assembler.place(no_sack);
        self.write(HEADER + 4, [1, 1, 8, 10]);
        self.assembler.place(stamp);
        self.assembler.call(Helper::Monotonic);
        self.assembler.operate(Operation::Divide, Register::R0, 1_000_000);
        self.assembler.mov(Register::R2, Register::R0);
        self.assembler.operate(Operation::ShiftRight, Register::R2, KEPT.count_ones().cast_signed());
        self.assembler.operate(Operation::ShiftLeft, Register::R2, KEPT.count_ones().cast_signed());
        self.assembler.load(Width::Double, Register::R1, Register::R10, KEPT_AT);
        self.assembler.operate(Operation::Or, Register::R2, Register::R1);
        // It must not lie in the future.
        self.assembler.jump_if(Register::R2, Condition::LessOrEqual, Register::R0, earlier);
        self.assembler.operate(Operation::Subtract, Register::R2, KEPT.cast_signed() + 1);
        self.assembler.place(earlier);
        self.assembler.from_network_order(Register::R2, Width::Word);
        self.assembler.store(Width::Word, Register::R10, ANSWER_AT + HEADER + 8, Register::R2);
        self.assembler.load(Width::Double, Register::R2, Register::R10, STAMP_AT);
        self.assembler.from_network_order(Register::R2, Width::Word);
        self.assembler.store(Width::Word, Register::R10, ANSWER_AT + HEADER + 12, Register::R2);
        self.assembler.operate(Operation::And, Register::R1, NO_SCALE);
        self.assembler.jump_if(Register::R1, Condition::Equal, NO_SCALE, no_scale);
        self.write(HEADER + 16, [1, 3, 3, scale]);
        self.assembler.jump(written);
        self.assembler.place(no_scale);
        self.write(HEADER + 16, [1; 4]);
        self.assembler.place(written);
    }

    /// Makes the packet the answer, whose TCP header of `len` bytes is on the stack, and sends it.
    fn send(&mut self, plain: Plain, len: i16, slot: u32) {
        let left = self.exits.of(Verdict::Left);
        let words = i32::from(len) << 2;
        self.assembler.store(Width::Byte, Register::R10, ANSWER_AT + OFFSET, words);
        self.sum(plain, len);
        self.assembler.store(Width::Half, Register::R10, ANSWER_AT + CHECKSUM, Register::R0);
        let total = i32::from(at(plain.transport()) + len);
        self.assembler.load(Width::Double, CONTEXT, Register::R10, CONTEXT_AT);
        self.assembler.mov(Register::R1, CONTEXT);
        self.assembler.mov(Register::R2, total);
        self.assembler.operate(Operation::Subtract, Register::R2, LENGTH);
        self.assembler.call(Helper::AdjustTail);
        self.assembler.jump_if(Register::R0, Condition::NotEqual, 0, left);
        self.assembler.load(Width::Word, DATA, CONTEXT, MD_DATA);
        self.assembler.load(Width::Word, DATA_END, CONTEXT, MD_DATA_END);
        self.assembler.mov(Register::R1, DATA);
        self.assembler.operate(Operation::Add, Register::R1, total);
        self.assembler.jump_if(Register::R1, Condition::Greater, DATA_END, left);
        self.exchange(0, 6, &[(Width::Word, 0), (Width::Half, 4)]);
        match plain.family {
            Family::V4 => self.turn_v4(len),
            Family::V6 => self.turn_v6(len),
        }
        for word in (0..len).step_by(4) {
            self.assembler.load(Width::Word, Register::R1, Register::R10, ANSWER_AT + word);
            self.assembler.store(Width::Word, DATA, at(plain.transport()) + word, Register::R1);
        }
        self.end(slot, XDP_TX, None);
    }

    /// r0 = the checksum of the answer's TCP header; which side is which does not matter to it.
    fn sum(&mut self, plain: Plain, len: i16) {
        let (addresses, size) = match plain.family {
            Family::V4 => (NETWORK + 12, 8),
            Family::V6 => (NETWORK + 8, 32),
        };
        let seed = i32::from(6_u16.to_be()) + i32::from(len.cast_unsigned().to_be());
        let more = |coder: &mut Self, base: Register, offset: i32, size: i32| {
            coder.assembler.mov(Register::R1, 0);
            coder.assembler.mov(Register::R2, 0);
            coder.assembler.mov(Register::R3, base);
            coder.assembler.operate(Operation::Add, Register::R3, offset);
            coder.assembler.mov(Register::R4, size);
            coder.assembler.call(Helper::ChecksumDifference);
        };
        self.assembler.mov(Register::R5, seed);
        more(self, DATA, i32::from(at(addresses)), size);
        self.assembler.mov(Register::R5, Register::R0);
        more(self, Register::R10, i32::from(ANSWER_AT), i32::from(len));
        self.fold();
    }

    /// Folds the sum in r0 to 16 bits and turns them over.
    fn fold(&mut self) {
        for _ in 0..2 {
            self.assembler.operate32(Operation::Move, Register::R1, Register::R0);
            self.assembler.operate32(Operation::ShiftRight, Register::R1, 16_u32);
            self.assembler.operate32(Operation::And, Register::R0, 0xffff_u32);
            self.assembler.operate32(Operation::Add, Register::R0, Register::R1);
        }
        self.assembler.operate32(Operation::Xor, Register::R0, 0xffff_u32);
    }

    /// Exchanges two parts of the packet, piece by piece.
    fn exchange(&mut self, one: i16, other: i16, pieces: &[(Width, i16)]) {
        for &(width, piece) in pieces {
            self.assembler.load(width, Register::R1, DATA, one + piece);
            self.assembler.load(width, Register::R2, DATA, other + piece);
            self.assembler.store(width, DATA, one + piece, Register::R2);
            self.assembler.store(width, DATA, other + piece, Register::R1);
        }
    }

    /// The IPv4 header of the answer.
    fn turn_v4(&mut self, len: i16) {
        let ip = at(NETWORK);
        let total = (HEADER + len).cast_unsigned();
        // Version and length, no service class; don't fragment; 64 hops and TCP.
        let fields: [(i16, u16); 5] = [(0, 0x4500), (2, total), (4, 0), (6, 0x4000), (8, 0x4006)];
        for (field, value) in fields {
            self.assembler.store(Width::Half, DATA, ip + field, i32::from(value.to_be()));
        }
        let known: u32 = fields.iter().map(|(_, value)| u32::from(value.to_be())).sum();
        self.assembler.operate32(Operation::Move, Register::R0, known);
        for half in (12..20).step_by(2) {
            self.assembler.load(Width::Half, Register::R1, DATA, ip + half);
            self.assembler.operate32(Operation::Add, Register::R0, Register::R1);
        }
        self.fold();
        self.assembler.store(Width::Half, DATA, ip + 10, Register::R0);
        self.exchange(ip + 12, ip + 16, &[(Width::Word, 0)]);
    }

    /// The IPv6 header of the answer.
    fn turn_v6(&mut self, len: i16) {
        let ip = at(NETWORK);
        self.assembler.store(Width::Word, DATA, ip, 0x6000_0000_u32.to_be());
        self.assembler.store(Width::Half, DATA, ip + 4, i32::from(len.cast_unsigned().to_be()));
        self.assembler.store(Width::Byte, DATA, ip + 7, 64);
        self.exchange(ip + 8, ip + 24, &[(Width::Double, 0), (Width::Double, 8)]);
    }
}

/// An offset that an instruction can have.
pub(super) fn at(offset: u32) -> i16 {
    i16::try_from(offset).unwrap_or(i16::MAX)
}
