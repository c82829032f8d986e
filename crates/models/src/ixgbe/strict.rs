//! What the datasheet forbids, as errors that name the register: so that a wrong driver fails on the model and not on
//! hardware, where the same fault may be a rare hang.

use std::fmt;

/// One thing a driver did that it must not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The register, or what else was used wrongly.
    pub register: &'static str,
    /// Which of them, for arrays.
    pub index: u32,
    /// Which rule.
    pub rule: Rule,
}

/// The rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// No register has this offset.
    #[error("no register has offset {0:#x}")]
    Unknown(u32),
    /// Registers are words of 32 bits, of which two may be accessed at once.
    #[error("access to {1} bytes at {0:#x}: registers are words of 32 bits")]
    NotAWord(u64, usize),
    /// Registers may not be touched for a millisecond after a reset.
    #[error("touched within 1 ms after a reset")]
    TooSoonAfterReset,
    /// Tails count only once the queue is enabled and says so.
    #[error("written before the queue is enabled (poll ENABLE until it reads 1)")]
    TailBeforeEnable,
    /// Ring registers stay as they are while the queue is enabled.
    #[error("changed while the queue is enabled")]
    RingChangedWhileEnabled,
    /// Rings are aligned to, and multiples of, 128 bytes.
    #[error("{0:#x} is not a multiple of 128 bytes")]
    Unaligned(u32),
    /// A ring has descriptors.
    #[error("the queue is enabled with a ring of no descriptors")]
    EmptyRing,
    /// Head and tail lie in the ring.
    #[error("tail {0} lies outside the ring")]
    TailOutsideRing(u32),
    /// Receive filters and offloads are changed with the receiver off.
    #[error("changed while RXCTRL.RXEN is set")]
    ReceiverRunning,
    /// Both registers that strip the check sequence must say the same.
    #[error("HLREG0.RXCRCSTRP and RDRXCTL.CRCSTRIP differ when the receiver is started")]
    CrcStripDiffers,
    /// Bits that software must set before the receiver is started.
    #[error("RSCACKC and FCOE_WRFIX must be set, RSCFRSTSIZE cleared, before the receiver is started")]
    RdrxctlNotSet,
    /// Reserved bits with a demanded value.
    #[error("bit 12 must be written 0")]
    ReservedBit,
    /// Five-tuple filters have priorities from 1 to 7.
    #[error("priority 0 is reserved: the lowest is 1")]
    NoPriority,
    /// Five-tuple filters compare no flags of TCP.
    #[error("bits 19:13 of {0:#010x} must be 1000000b (CTRL_BP)")]
    ControlBits(u32),
    /// Receive buffers have a size, and no header split is done.
    #[error("{0:#x} names no buffer size, or a descriptor type that is not modelled")]
    BadSrrctl(u32),
    /// The transmit arbiter is off while it is configured.
    #[error("changed while RTTDCS.ARBDIS is clear")]
    ArbiterRunning,
    /// Transmit DMA is on before queues are.
    #[error("the queue is enabled before DMATXCTL.TE")]
    QueueBeforeTransmitter,
    /// Descriptors are written back in order.
    #[error("DESC_WRO_EN is set when the queue is enabled: the head may seem to go backwards")]
    RelaxedWriteBack,
    /// The address of the head write-back.
    #[error("head write-back address {0:#x} is not a multiple of 16 bytes")]
    HeadWriteBackUnaligned(u32),
    /// Bus mastering.
    #[error("DMA without bus mastering: set it in the PCI command register")]
    NoBusMaster,
    /// DMA where nothing is mapped.
    #[error("DMA of {1} bytes at {0:#x}, where nothing is mapped for it")]
    NotMapped(u64, usize),
    /// A transmit descriptor that makes no sense.
    #[error("descriptor {0:08x?}: {1}")]
    BadDescriptor([u32; 4], &'static str),
    /// A perfect filter lies in the bucket that its fields hash to.
    #[error("bucket hash {0:#06x}, but the filter's fields have {1:#06x}: no packet will match it")]
    WrongBucket(u32, u32),
    /// Packet buffers and the flow director's filters share the receiver's memory: the buffers are made smaller first.
    #[error("RXPBSIZE has {0} KiB, and filters take {1} KiB of the same {2}")]
    PacketMemory(u32, u32, u32),
    /// Semaphores are asked for and given back by whoever holds them.
    #[error("used without the semaphore that guards it")]
    NoSemaphore,
    /// One command at a time goes to a PHY.
    #[error("used while a command to the PHY is under way (poll MSCA.MDICMD until it reads 0)")]
    CommandUnderWay,
    /// The link is left alone where management wants it so.
    #[error("negotiation was restarted though MNG_VETO is set")]
    Vetoed,
    /// The firmware's bits of SW_FW_SYNC.
    #[error("software wrote the firmware's bits")]
    FirmwareBits,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]: {}", self.register, self.index, self.rule)
    }
}

/// How many violations are kept; the rest is only counted.
const KEPT: usize = 256;

/// What was found so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Violations {
    kept: Vec<Violation>,
    pub(super) count: u64,
}

impl Violations {
    pub(super) fn add(&mut self, register: &'static str, index: u32, rule: Rule) {
        self.count += 1;
        if self.kept.len() < KEPT {
            self.kept.push(Violation { register, index, rule });
        }
    }

    pub(super) fn take(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.kept)
    }
}
