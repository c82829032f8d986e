//! Two NICs on a cable, driven through the seam that real drivers are written to.
#![expect(clippy::unwrap_used, reason = "what cannot be set up must fail the test")]

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bywash_hw::ixgbe::RESET_QUIET_US;
use bywash_hw::ixgbe::desc::{self, rx, tx};
use bywash_hw::ixgbe::regs::*;
use bywash_hw::pci::{command, config};
use bywash_models::cable::Impairment;
use bywash_models::function::{Handle, InProcess};
use bywash_models::ixgbe::Board;
use bywash_models::world::Shared;
use bywash_sys::function::{DmaMemory, Function, Registers};
use bywash_sys::memory::{HugePages, allocate};
use bywash_sys::shared::Mapping;

const RING: u32 = 8;

/// Polls, with a bound.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < deadline, "{what} takes too long");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Brings queue 0 up, with its memory mapped at `base`: rings at 0 and 0x1000, buffers from 0x2000 on.
fn start(registers: &Handle, base: u64, memory: &Mapping) {
    let low = u32::try_from(base & 0xffff_ffff).unwrap();
    let high = u32::try_from(base >> 32).unwrap();
    registers.write32(CTRL.offset(), CTRL::RST.mask);
    std::thread::sleep(Duration::from_micros(RESET_QUIET_US));
    until("reset", || registers.read32(CTRL.offset()) & CTRL::RST.mask == 0);
    registers.write32(FCTRL.offset(), FCTRL::BAM.mask);
    let rdrxctl = registers.read32(RDRXCTL.offset()) & !RDRXCTL::RSCFRSTSIZE.mask;
    let bits = RDRXCTL::CRCSTRIP.mask | RDRXCTL::RSCACKC.mask | RDRXCTL::FCOE_WRFIX.mask;
    registers.write32(RDRXCTL.offset(), rdrxctl | bits);
    registers.write32(DMATXCTL.offset(), registers.read32(DMATXCTL.offset()) | DMATXCTL::TE.mask);
    for (register, value) in [
        (&RDBAL, low),
        (&RDBAH, high),
        (&RDLEN, RING * 16),
        (&SRRCTL, SRRCTL::BSIZEPACKET.with(2) | SRRCTL::DESCTYPE.with(1)),
        (&TDBAL, low + 0x1000),
        (&DCA_TXCTRL, DCA_TXCTRL::DESC_RRO_EN.mask),
        (&TDBAH, high),
        (&TDLEN, RING * 16),
        (&RXDCTL, RXDCTL::ENABLE.mask),
        (&TXDCTL, TXDCTL::ENABLE.mask),
    ] {
        registers.write32(register.offset(), value);
    }
    until("queue", || registers.read32(RXDCTL.offset()) & RXDCTL::ENABLE.mask != 0);
    for slot in 0..RING {
        let words = [low + 0x2000 + slot * 2048, high, 0, 0];
        memory.copy_in(slot as usize * 16, &desc::bytes(words));
    }
    registers.write32(RDT.offset(), RING - 1);
    registers.write32(RXCTRL.offset(), RXCTRL::RXEN.mask);
    until("link", || registers.read32(LINKS.offset()) & LINKS::UP.mask != 0);
}

#[test]
fn a_frame_goes_from_one_nic_to_the_other() {
    let boards = [1, 2].map(|last| Board { mac: [2, 0, 0, 0, 0, last], ..Board::default() });
    let world = Shared::new(&boards, Impairment { delay_us: 100, ..Impairment::default() });
    let mut ends = Vec::new();
    for index in 0..2 {
        let mut function = InProcess::new(&world, index);
        let memory = allocate(1, HugePages::Off, None).unwrap();
        let mapping = Mapping::of_file(memory.file.as_fd(), 0, memory.memory.bytes()).unwrap();
        let (address, bytes) = (mapping.address(), mapping.bytes());
        let base =
            function.map(&DmaMemory { address, bytes, file: memory.file.as_fd(), offset: 0 }).unwrap().of(0);
        let mut id = [0; 2];
        function.read_config(config::DEVICE, &mut id).unwrap();
        assert_eq!(u16::from_le_bytes(id), 0x10fb);
        let on = (command::MEMORY | command::BUS_MASTER).to_le_bytes();
        function.write_config(config::COMMAND, &on).unwrap();
        let registers = function.registers();
        start(&registers, base, &mapping);
        ends.push((function, registers, mapping, base));
    }
    let events = ends[1].0.interrupts(2).unwrap();
    let registers = &ends[1].1;
    registers.write32(GPIE.offset(), GPIE::MSIX_MODE.mask);
    registers.write32(IVAR.offset(), 0x81);
    registers.write32(EIMS_EX.offset(), 2);

    let frame: Vec<u8> = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5].into_iter().chain(0..100).collect();
    let (_, registers, mapping, base) = &ends[0];
    mapping.copy_in(0x8000, &frame);
    let length = u32::try_from(frame.len()).unwrap();
    let bits = tx::DTYP.with(tx::TYPE_DATA) | tx::DEXT.mask | tx::EOP.mask | tx::RS.mask | tx::IFCS.mask;
    let low = u32::try_from(base & 0xffff_ffff).unwrap() + 0x8000;
    let high = u32::try_from(base >> 32).unwrap();
    mapping.copy_in(0x1000, &desc::bytes([low, high, bits | length, tx::PAYLEN.with(length)]));
    registers.write32(TDT.offset(), 1);

    let (_, _, mapping, _) = &ends[1];
    let mut words = [0; 4];
    until("delivery", || {
        world.step();
        words = desc::words(mapping.read::<[u8; 16]>(0).unwrap());
        rx::DD.is_set(words[2])
    });
    assert_eq!(rx::LENGTH.of(words[3]), length);
    let mut received = vec![0; frame.len()];
    mapping.copy_out(0x2000, &mut received);
    assert_eq!(received, frame);
    let mut count = [0; 8];
    rustix::io::read(&events[1], &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    for index in 0..2 {
        let broken = world.with(index, |device| device.nic.violations());
        assert_eq!(broken.iter().map(ToString::to_string).collect::<Vec<_>>(), Vec::<String>::new());
    }
    let base = ends[0].3;
    ends[0].0.unmap(base).unwrap();
    assert!(ends[0].0.unmap(base).is_err());
    assert!(ends[0].0.interrupts(65).unwrap_err().to_string().contains("the device has 64"));
}
