//! What is so of a connection, and what is not: a bit each, in one word. What decides together is asked about together, by a mask.

/// Some of what may be so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts(u32);

/// Our SYN is not acknowledged yet: SND.UNA is its number.
pub(super) const SYN_OUT: Facts = Facts(1);
/// The program has let go of the connection.
pub(super) const RELEASED: Facts = Facts(1 << 1);
/// It is in line: it has something to send, or is to be looked at.
pub(super) const DIRTY: Facts = Facts(1 << 2);

// What was agreed on.
/// Timestamps (RFC 7323).
pub(super) const TIMESTAMPS: Facts = Facts(1 << 3);
/// Selective acknowledgments (RFC 2018).
pub(super) const SACK: Facts = Facts(1 << 4);
/// Both understand congestion marks (RFC 3168).
pub(super) const ECN: Facts = Facts(1 << 5);
/// What we send may be marked: no SYN has said otherwise (RFC 3168, 6.1.1).
pub(super) const ECT: Facts = Facts(1 << 6);

// What the program wants, and knows.
/// Nothing follows what it has written: a FIN does.
pub(super) const FIN_WANTED: Facts = Facts(1 << 7);
/// Small segments go out at once.
pub(super) const NODELAY: Facts = Facts(1 << 8);
/// Only full segments go out.
pub(super) const CORK: Facts = Facts(1 << 9);
/// More follows what the program wrote last: it does not end there, and no segment says so.
pub(super) const MORE_FOLLOWS: Facts = Facts(1 << 10);
/// What is less than a full segment waits for that, or for the peer's next acceptable segment.
pub(super) const AWAITS_MORE: Facts = Facts(1 << 11);
/// It would write more than there was room for.
pub(super) const WANTS_ROOM: Facts = Facts(1 << 12);
/// It was told that there is something to read, and has not read everything.
pub(super) const TOLD_READABLE: Facts = Facts(1 << 13);
/// It answers each message: acknowledgments go with that.
pub(super) const ANSWERS: Facts = Facts(1 << 14);
/// What we send may be urgent, up to `snd_up`.
pub(super) const URGES: Facts = Facts(1 << 15);
/// Records of ours may end among what is not acknowledged: see `records`.
pub(super) const HAS_RECORDS: Facts = Facts(1 << 16);

// How it is going.
/// An acknowledgment is to go out.
pub(super) const ACK_NOW: Facts = Facts(1 << 17);
pub(super) const FIN_SENT: Facts = Facts(1 << 18);
/// There was no memory for what came: until there is, the peer is told that the window is shut.
pub(super) const SQUEEZED: Facts = Facts(1 << 19);
/// The congestion window, and nothing else, held back data.
pub(super) const LIMITED: Facts = Facts(1 << 20);
/// Nothing new goes out before the timer has: the window was one segment, and congestion was marked (RFC 3168, 6.1.2).
pub(super) const HELD_BY_MARK: Facts = Facts(1 << 21);
/// A mark came in: the peer is told until it says that it has slowed down.
pub(super) const ECHOES_MARK: Facts = Facts(1 << 22);
/// The peer's data could be marked on its way, or was: not all who agree on marks send such.
pub(super) const ECT_SEEN: Facts = Facts(1 << 31);
/// We have slowed down, and the next new segment says so.
pub(super) const TELLS_SLOWED: Facts = Facts(1 << 23);
/// There are `duplicates`: the peer has no SACK.
pub(super) const DUPLICATE_ACKS: Facts = Facts(1 << 24);
/// Something is missing, and proportional rate reduction (RFC 9937) sets the window until `recover`.
pub(super) const RECOVERY: Facts = Facts(1 << 25);
/// The timer ran out: slow start until `recover`.
pub(super) const LOSS: Facts = Facts(1 << 26);

// What there is of `seldom`.
pub(super) const PROBE: Facts = Facts(1 << 27);
pub(super) const SLOWED_AT: Facts = Facts(1 << 28);
pub(super) const FIN_AT: Facts = Facts(1 << 29);
pub(super) const DUPLICATE: Facts = Facts(1 << 30);

/// Something that was missing is being made up for.
pub(super) const REPAIRS: Facts = RECOVERY.with(LOSS);
/// Acknowledgments may say more than what has arrived: of a loss, of a probe, or that a window's marks are over.
pub(super) const AWAITS_WORD: Facts = REPAIRS.with(DUPLICATE_ACKS).with(PROBE).with(SLOWED_AT);
/// One of these is so of a connection whose next segment is not the usual one.
pub(super) const NOT_PREDICTED: Facts = AWAITS_WORD.with(FIN_AT).with(RELEASED).with(SQUEEZED);
/// One of these is so of a connection that may have more to do, or less, than to send a message.
pub(super) const NOT_A_MESSAGE: Facts = FIN_SENT
    .with(HELD_BY_MARK)
    .with(SQUEEZED)
    .with(CORK)
    .with(MORE_FOLLOWS)
    .with(URGES)
    .with(HAS_RECORDS)
    .with(WANTS_ROOM)
    .with(ECHOES_MARK)
    .with(TELLS_SLOWED)
    .with(REPAIRS);

impl Facts {
    /// These and others.
    pub(super) const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether one of these is so.
    #[inline]
    pub(super) const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// All of these are so from now on, or none.
    #[inline]
    pub(super) const fn set(&mut self, facts: Self, are: bool) {
        self.remove(facts);
        if are {
            self.add(facts);
        }
    }

    /// All of these are so from now on.
    #[inline]
    pub(super) const fn add(&mut self, facts: Self) {
        self.0 |= facts.0;
    }

    /// All of these are so from now on, if that is so; else it is as it was.
    #[inline]
    pub(super) const fn add_if(&mut self, facts: Self, so: bool) {
        if so {
            self.add(facts);
        }
    }

    /// None of these is so any more.
    #[inline]
    pub(super) const fn remove(&mut self, facts: Self) {
        self.0 &= !facts.0;
    }

    /// None of these is so any more. Whether one was.
    #[inline]
    pub(super) const fn take(&mut self, facts: Self) -> bool {
        let had = self.any(facts);
        if had {
            self.remove(facts);
        }
        had
    }
}
