//! Where the registers of queues lie, and how a queue is switched on: the same on all families but for offsets and a few values.
//!
//! Bits of the control registers and of SRRCTL are named as on the 82599; those used here lie in the same places on all.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bywash_frame::FRAME_DATA;
use bywash_hw::ixgbe::desc::DESCTYPE_ADVANCED;
use bywash_hw::ixgbe::regs::{RXDCTL, SRRCTL, TXDCTL};
use bywash_hw::reg::Register;
use bywash_port::QueuePair;
use bywash_sys::function::{Function, Registers};

use super::{
    Bar, Memory, NicError, RxBits, RxParts, RxRing, SHORT, Settings, Switch, TxParts, TxRing, Vlans, Wait,
    Wake,
};

/// Registers of receiving queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxRegisters {
    /// The ring's address, low and high.
    pub(crate) base: [&'static Register; 2],
    pub(crate) length: &'static Register,
    /// Where the NIC is; where the driver may not write it, it is 0 when a queue is switched on.
    pub(crate) head: Option<&'static Register>,
    pub(crate) tail: &'static Register,
    pub(crate) split: &'static Register,
    /// What tells the NIC in `split` to drop what a queue has no descriptor for.
    pub(crate) drop: u32,
    pub(crate) control: &'static Register,
    /// Bits of `control`: when descriptors are fetched and written back.
    pub(crate) thresholds: u32,
    /// Bits of `control` that take VLAN tags out; 0 where that is not each queue's.
    pub(crate) strip: u32,
    /// What unmasks the vectors, a bit for each. Queue and vector have the same number.
    pub(crate) unmask: &'static Register,
    /// What descriptors say by other bits than other NICs'.
    pub(crate) bits: RxBits,
    /// See [`Switch::rest`].
    pub(crate) rest: Duration,
}

/// Registers of transmitting queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxRegisters {
    /// The ring's address, low and high.
    pub(crate) base: [&'static Register; 2],
    pub(crate) length: &'static Register,
    pub(crate) head: &'static Register,
    pub(crate) tail: &'static Register,
    /// Where in memory the NIC would write its head, low and high.
    pub(crate) head_in_memory: [&'static Register; 2],
    pub(crate) control: &'static Register,
    /// Bits of `control`: when descriptors are fetched and written back.
    pub(crate) thresholds: u32,
    /// See [`TxParts::names_context`].
    pub(crate) names_context: bool,
    /// See [`Switch::rest`].
    pub(crate) rest: Duration,
}

/// What a queue of an 82599 had begun to write is written after so long, says the datasheet.
pub(crate) const REST: Duration = Duration::from_micros(100);

impl RxRegisters {
    /// A ring for a queue, which is still off. Without a bell its worker polls; a virtual function's is told its VLANs.
    pub(crate) fn ring<R: Registers>(
        &self,
        bar: &Bar<R>,
        memory: &Memory,
        queue: u32,
        bell: Option<OwnedFd>,
        vlans: Option<Arc<Vlans>>,
    ) -> Result<RxRing<R>, NicError> {
        let ring = memory.ring(
            bar.clone(),
            2 * queue,
            self.tail.at(queue),
            switch(self.control, queue, self.rest),
        )?;
        let unmask = (self.unmask.at(queue / 32), 1 << (queue % 32));
        let wake = bell.map(|bell| Wake { bell, unmask });
        Ok(RxRing::new(RxParts { ring, wake, bits: self.bits, vlans }))
    }

    /// Switches a queue on, one of `queues`. It has no descriptors before its first call to `rx`.
    pub(crate) fn enable<R: Registers>(
        &self,
        bar: &Bar<R>,
        memory: &Memory,
        queue: u32,
        queues: u16,
        strip_vlan: bool,
    ) -> Result<(), NicError> {
        put_base(bar, memory, self.base, self.length, queue, 2 * queue);
        if let Some(head) = self.head {
            bar.put_at(head, queue, 0);
        }
        bar.put_at(self.tail, queue, 0);
        // With several queues, one that is not emptied must not hold up the others: what is for it is dropped.
        let drop = if queues > 1 { self.drop } else { 0 };
        let kibibytes = u32::try_from(FRAME_DATA / 1024).unwrap_or(0);
        let one_buffer = SRRCTL::BSIZEPACKET.with(kibibytes) | SRRCTL::DESCTYPE.with(DESCTYPE_ADVANCED);
        bar.put_at(self.split, queue, one_buffer | drop);
        let strip = if strip_vlan { self.strip } else { 0 };
        bar.put_at(self.control, queue, self.thresholds | strip | RXDCTL::ENABLE.mask);
        let on = Wait::set(RXDCTL::ENABLE.mask, SHORT, "the receive queue does not start");
        bar.wait(self.control, queue, on).map(|_| ())
    }
}

impl TxRegisters {
    /// A ring for a queue, which is still off.
    pub(crate) fn ring<R: Registers>(
        &self,
        bar: &Bar<R>,
        memory: &Memory,
        queue: u32,
        max_len: usize,
    ) -> Result<TxRing<R>, NicError> {
        let ring = memory.ring(
            bar.clone(),
            2 * queue + 1,
            self.tail.at(queue),
            switch(self.control, queue, self.rest),
        )?;
        Ok(TxRing::new(TxParts { ring, max_len, names_context: self.names_context }))
    }

    /// Switches a queue on.
    pub(crate) fn enable<R: Registers>(
        &self,
        bar: &Bar<R>,
        memory: &Memory,
        queue: u32,
    ) -> Result<(), NicError> {
        put_base(bar, memory, self.base, self.length, queue, 2 * queue + 1);
        bar.put_at(self.head, queue, 0);
        bar.put_at(self.tail, queue, 0);
        // Done is said in descriptors, not by the head in memory, whatever an earlier driver wanted.
        self.head_in_memory.iter().for_each(|register| bar.put_at(register, queue, 0));
        bar.put_at(self.control, queue, self.thresholds | TXDCTL::ENABLE.mask);
        let on = Wait::set(TXDCTL::ENABLE.mask, SHORT, "the transmit queue does not start");
        bar.wait(self.control, queue, on).map(|_| ())
    }
}

/// Both kinds' enable bit is the same one.
const _: () = assert!(RXDCTL::ENABLE.mask == TXDCTL::ENABLE.mask);

fn switch(control: &Register, queue: u32, rest: Duration) -> Switch {
    Switch { offset: control.at(queue), name: (control.name, queue), enable: RXDCTL::ENABLE.mask, rest }
}

fn put_base<R: Registers>(
    bar: &Bar<R>,
    memory: &Memory,
    [low, high]: [&Register; 2],
    length: &Register,
    queue: u32,
    ring: u32,
) {
    let address = memory.ring_address(ring);
    bar.put_at(low, queue, address[0]);
    bar.put_at(high, queue, address[1]);
    bar.put_at(length, queue, memory.ring_bytes());
}

/// A physical function's queues, each with a vector to wake its worker, switched on.
pub(crate) fn start_all<F: Function>(
    function: &mut F,
    bar: &Bar<F::Registers>,
    memory: &Memory,
    settings: &Settings,
    (rx, tx): &(RxRegisters, TxRegisters),
) -> Result<Vec<QueuePair>, NicError> {
    let Settings { queues, max_len, strip_vlan, .. } = *settings;
    let vectors = if settings.receives { queues } else { 0 };
    let mut bells = function.interrupts(vectors)?.into_iter();
    let pair = |queue| {
        let receiver = settings.receives.then(|| {
            let ring = rx.ring(bar, memory, queue, bells.next(), None)?;
            rx.enable(bar, memory, queue, queues, strip_vlan)?;
            Ok::<_, NicError>(Box::new(ring) as _)
        });
        let sender = settings.sends.then(|| {
            let ring = tx.ring(bar, memory, queue, max_len)?;
            tx.enable(bar, memory, queue)?;
            Ok::<_, NicError>(Box::new(ring) as _)
        });
        Ok(QueuePair { rx: receiver.transpose()?, tx: sender.transpose()? })
    };
    (0..u32::from(queues)).map(pair).collect()
}
