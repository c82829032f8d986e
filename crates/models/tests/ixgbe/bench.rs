//! A tiny driver and the bench it drives the model on.

use bywash_hw::ixgbe::desc::{self, tx};
use bywash_hw::ixgbe::regs::*;
use bywash_hw::reg::Register;
use bywash_models::host::{FlatMemory, Host, Memory as _};
use bywash_models::ixgbe::{Board, Nic};

pub(crate) const MAC: [u8; 6] = [0x02, 0, 0, 0x82, 0x59, 0x90];
pub(crate) const RING: u32 = 8;
/// Each queue has 64 KiB: a receive ring, a transmit ring, buffers of 2 KiB for both.
const QUEUE_BYTES: u64 = 0x1_0000;
/// Queues there is memory for.
const QUEUES_WITH_MEMORY: usize = 8;
const BASE: u64 = 0x10_0000;

pub(crate) struct Bench {
    pub(crate) nic: Nic,
    pub(crate) memory: FlatMemory,
    pub(crate) interrupts: Vec<u16>,
    pub(crate) sent: Vec<Vec<u8>>,
    pub(crate) now: u64,
    tails: [u32; 128],
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(Board::default())
    }

    pub(crate) fn with(board: Board) -> Self {
        let mut bench = Self {
            nic: Nic::new(board),
            memory: FlatMemory { base: BASE, bytes: vec![0; QUEUES_WITH_MEMORY << 16] },
            interrupts: Vec::new(),
            sent: Vec::new(),
            now: 0,
            tails: [0; 128],
        };
        bench.nic.set_bus_master(true);
        bench
    }

    /// A NIC with `queues` queues in both directions, link up.
    pub(crate) fn started(queues: u32) -> Self {
        let mut bench = Self::new();
        bench.init();
        (0..queues).for_each(|queue| bench.start_queue(queue));
        bench.write(&RXCTRL, 0, RXCTRL::RXEN.mask);
        bench.wait(20_000);
        assert!(bench.nic.link_up());
        bench
    }

    pub(crate) fn read(&mut self, register: &Register, index: u32) -> u32 {
        self.nic.read32(register.at(index))
    }

    pub(crate) fn write(&mut self, register: &Register, index: u32, value: u32) {
        self.nic.write32(register.at(index), value);
    }

    pub(crate) fn set(&mut self, register: &Register, bits: u32) {
        let value = self.read(register, 0);
        self.write(register, 0, value | bits);
    }

    pub(crate) fn tick(&mut self) {
        let Self { memory, interrupts, sent, .. } = self;
        self.nic.tick(self.now, &mut Host { memory, interrupts, wire: sent });
    }

    pub(crate) fn wait(&mut self, microseconds: u64) {
        self.now += microseconds;
        self.tick();
    }

    /// Reset and what must be set before queues.
    pub(crate) fn init(&mut self) {
        self.write(&EIMC, 0, 0x7fff_ffff);
        self.write(&CTRL, 0, CTRL::RST.mask);
        self.wait(10_000);
        assert!(!CTRL::RST.is_set(self.read(&CTRL, 0)));
        self.write(&FCTRL, 0, FCTRL::BAM.mask);
        let rdrxctl = self.read(&RDRXCTL, 0) & !RDRXCTL::RSCFRSTSIZE.mask;
        let bits = RDRXCTL::CRCSTRIP.mask | RDRXCTL::RSCACKC.mask | RDRXCTL::FCOE_WRFIX.mask;
        self.write(&RDRXCTL, 0, rdrxctl | bits);
        self.set(&DMATXCTL, DMATXCTL::TE.mask);
    }

    pub(crate) fn start_queue(&mut self, queue: u32) {
        let base = BASE + u64::from(queue) * QUEUE_BYTES;
        let low = u32::try_from(base).unwrap();
        self.write(&RDBAL, queue, low);
        self.write(&RDBAH, queue, 0);
        self.write(&RDLEN, queue, RING * 16);
        self.write(&SRRCTL, queue, SRRCTL::BSIZEPACKET.with(2) | SRRCTL::DESCTYPE.with(1));
        self.write(&DCA_TXCTRL, queue, DCA_TXCTRL::DESC_RRO_EN.mask);
        self.write(&TDBAL, queue, low + 0x1000);
        self.write(&TDBAH, queue, 0);
        self.write(&TDLEN, queue, RING * 16);
        self.write(&RXDCTL, queue, RXDCTL::ENABLE.mask);
        self.write(&TXDCTL, queue, TXDCTL::ENABLE.mask);
        self.tick();
        assert!(RXDCTL::ENABLE.is_set(self.read(&RXDCTL, queue)));
        (0..RING).for_each(|slot| self.refill(queue, slot));
        self.write(&RDT, queue, RING - 1);
    }

    fn rx_descriptor(queue: u32, slot: u32) -> u64 {
        BASE + u64::from(queue) * QUEUE_BYTES + u64::from(slot) * 16
    }

    fn rx_buffer(queue: u32, slot: u32) -> u64 {
        BASE + u64::from(queue) * QUEUE_BYTES + 0x2000 + u64::from(slot) * 2048
    }

    pub(crate) fn refill(&mut self, queue: u32, slot: u32) {
        let address = u32::try_from(Self::rx_buffer(queue, slot)).unwrap();
        let bytes = desc::bytes([address, 0, 0, 0]);
        self.memory.write(Self::rx_descriptor(queue, slot), &bytes).unwrap();
    }

    pub(crate) fn rx_words(&self, queue: u32, slot: u32) -> [u32; 4] {
        let mut bytes = [0; 16];
        self.memory.read(Self::rx_descriptor(queue, slot), &mut bytes).unwrap();
        desc::words(bytes)
    }

    pub(crate) fn rx_bytes(&self, queue: u32, slot: u32) -> Vec<u8> {
        let length = desc::rx::LENGTH.of(self.rx_words(queue, slot)[3]) as usize;
        let mut bytes = vec![0; length];
        self.memory.read(Self::rx_buffer(queue, slot), &mut bytes).unwrap();
        bytes
    }

    /// A frame arrives and is delivered at once.
    pub(crate) fn arrive(&mut self, frame: &[u8]) {
        self.nic.receive(frame.into(), true);
        self.tick();
    }

    /// Which queues have a packet in their first descriptor.
    pub(crate) fn filled(&self, queues: u32) -> Vec<u32> {
        (0..queues).filter(|queue| desc::rx::DD.is_set(self.rx_words(*queue, 0)[2])).collect()
    }

    /// Puts descriptors into the transmit ring, each with its bytes, and writes the tail once.
    pub(crate) fn transmit(&mut self, queue: u32, descriptors: &[(&[u8], [u32; 4])]) {
        for (bytes, words) in descriptors {
            let slot = self.tails[queue as usize];
            let mut words = *words;
            if !bytes.is_empty() {
                let buffer = BASE + u64::from(queue) * QUEUE_BYTES + 0x8000 + u64::from(slot) * 4096;
                self.memory.write(buffer, bytes).unwrap();
                (words[0], words[1]) = (u32::try_from(buffer).unwrap(), 0);
                words[2] |= tx::LENGTH.with(u32::try_from(bytes.len()).unwrap());
            }
            self.memory.write(Self::tx_descriptor(queue, slot), &desc::bytes(words)).unwrap();
            self.tails[queue as usize] = (slot + 1) % RING;
        }
        self.write(&TDT, queue, self.tails[queue as usize]);
        self.tick();
    }

    fn tx_descriptor(queue: u32, slot: u32) -> u64 {
        BASE + u64::from(queue) * QUEUE_BYTES + 0x1000 + u64::from(slot) * 16
    }

    pub(crate) fn tx_words(&self, queue: u32, slot: u32) -> [u32; 4] {
        let mut bytes = [0; 16];
        self.memory.read(Self::tx_descriptor(queue, slot), &mut bytes).unwrap();
        desc::words(bytes)
    }

    /// What was broken, as text.
    pub(crate) fn broken(&mut self) -> Vec<String> {
        self.nic.violations().iter().map(ToString::to_string).collect()
    }
}

/// A data descriptor: whole packet of `length` bytes, with these bits.
pub(crate) fn data(length: usize, command: u32, options: u32) -> [u32; 4] {
    let command = command | tx::DTYP.with(tx::TYPE_DATA) | tx::DEXT.mask | tx::IFCS.mask;
    [0, 0, command, options | tx::PAYLEN.with(u32::try_from(length).unwrap())]
}

pub(crate) const LAST: u32 = tx::EOP.mask | tx::RS.mask;

/// A UDP or TCP packet over IPv4 from 10.0.0.1 to 10.0.0.2, checksums right.
pub(crate) fn packet(protocol: u8, ports: (u16, u16), payload: usize) -> Vec<u8> {
    use bywash_wire::checksum::Sum;
    let header = if protocol == 6 { 20 } else { 8 };
    let length = u16::try_from(20 + header + payload).unwrap();
    let mut frame = [&MAC[..], &[2, 0, 0, 0, 0, 9, 8, 0], &[0x45, 0]].concat();
    frame.extend(length.to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let checksum = Sum::new().bytes(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(ports.0.to_be_bytes());
    frame.extend(ports.1.to_be_bytes());
    if protocol == 6 {
        frame.extend([0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x19, 1, 0, 0, 0, 0, 0]);
    } else {
        frame.extend((length - 20).to_be_bytes());
        frame.extend([0, 0]);
    }
    frame.extend((0..payload).map(|i| i.to_le_bytes()[0]));
    let at = 34 + if protocol == 6 { 16 } else { 6 };
    let sum =
        Sum::pseudo(&[10, 0, 0, 1], &[10, 0, 0, 2], protocol, u32::from(length) - 20).bytes(&frame[34..]);
    frame[at..at + 2].copy_from_slice(&sum.checksum().to_be_bytes());
    // What is shorter than a frame may be is padded.
    frame.resize(frame.len().max(60), 0);
    frame
}
