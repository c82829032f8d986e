//! The server, as a client of another process's sees it.
#![expect(clippy::unwrap_used, reason = "what cannot be set up must fail the test")]

use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use bywash_hw::ixgbe::BAR_SIZE;
use bywash_hw::ixgbe::desc::{self, rx, tx};
use bywash_hw::ixgbe::regs::*;
use bywash_hw::pci::{command, config};
use bywash_hw::reg::Register;
use bywash_models::cable::Impairment;
use bywash_models::ixgbe::Board;
use bywash_models::server::{ServeError, Server};
use bywash_models::world::Shared;
use bywash_sys::memory::{HugePages, allocate};
use bywash_sys::shared::{Mapping, Word};
use rustix::event::{EventfdFlags, eventfd};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::Client;

const BAR: u32 = VFIO_PCI_BAR0_REGION_INDEX;

fn read(client: &mut Client, offset: u32) -> u32 {
    let mut bytes = [0; 4];
    client.region_read(BAR, u64::from(offset), &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

fn write(client: &mut Client, offset: u32, value: u32) {
    client.region_write(BAR, u64::from(offset), &value.to_le_bytes()).unwrap();
}

#[test]
fn a_client_maps_memory_loops_a_frame_and_gets_its_interrupt() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic.sock");
    let world = Shared::new(&[Board::default()], Impairment::default());
    let mut server = Server::new(&path, &world, 0).unwrap();
    let serving = thread::spawn(move || {
        let first = server.serve();
        (first, server.serve())
    });

    let mut client = Client::new(&path).unwrap();
    let mut id = [0; 4];
    client.region_read(VFIO_PCI_CONFIG_REGION_INDEX, config::VENDOR, &mut id).unwrap();
    assert_eq!(id, [0x86, 0x80, 0xfb, 0x10]);
    let on = (command::MEMORY | command::BUS_MASTER).to_le_bytes();
    client.region_write(VFIO_PCI_CONFIG_REGION_INDEX, config::COMMAND, &on).unwrap();

    let memory = allocate(1, HugePages::Off, None).unwrap();
    let mapping = Mapping::of_file(memory.file.as_fd(), 0, memory.memory.bytes()).unwrap();
    client.dma_map(0, 0x10_0000, mapping.bytes() as u64, memory.file.as_raw_fd()).unwrap();
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let flags = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_EVENTFD;
    client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, 3, 1, &[bell.as_raw_fd()]).unwrap();

    let bits = RDRXCTL::CRCSTRIP.mask | RDRXCTL::RSCACKC.mask | RDRXCTL::FCOE_WRFIX.mask;
    let frame: Vec<u8> = [0xff; 6].into_iter().chain([2, 0, 0, 0, 0, 1, 0x88, 0xb5]).chain(0..60).collect();
    let length = u32::try_from(frame.len()).unwrap();
    mapping.copy_in(0, &desc::bytes([0x10_4000, 0, 0, 0]));
    mapping.copy_in(0x8000, &frame);
    let data = tx::DTYP.with(tx::TYPE_DATA) | tx::DEXT.mask | tx::EOP.mask | tx::RS.mask | length;
    mapping.copy_in(0x1000, &desc::bytes([0x10_8000, 0, data, tx::PAYLEN.with(length)]));
    for (register, value) in [
        (&HLREG0, HLREG0.reset.unwrap() | HLREG0::LPBK.mask),
        (&FCTRL, FCTRL::BAM.mask),
        (&RDRXCTL, bits),
        (&DMATXCTL, DMATXCTL::TE.mask),
        (&RDBAL, 0x10_0000),
        (&RDLEN, 128),
        (&SRRCTL, SRRCTL::BSIZEPACKET.with(2) | SRRCTL::DESCTYPE.with(1)),
        (&TDBAL, 0x10_1000),
        (&DCA_TXCTRL, DCA_TXCTRL::DESC_RRO_EN.mask),
        (&TDLEN, 128),
        (&RXDCTL, RXDCTL::ENABLE.mask),
        (&TXDCTL, TXDCTL::ENABLE.mask),
        (&GPIE, GPIE::MSIX_MODE.mask),
        (&IVAR, 0x83),
        (&EIMS_EX, 1 << 3),
        (&RXCTRL, RXCTRL::RXEN.mask),
        (&RDT, 1),
        (&TDT, 1),
    ] {
        write(&mut client, register.offset(), value);
    }
    assert_eq!(read(&mut client, GPRC.offset()), 1);
    let words = desc::words(mapping.read::<[u8; 16]>(0).unwrap());
    assert!(rx::DD.is_set(words[2]) && rx::LENGTH.of(words[3]) == length);
    let mut received = vec![0; frame.len()];
    mapping.copy_out(0x4000, &mut received);
    assert_eq!(received, frame);
    let mut count = [0; 8];
    rustix::io::read(&bell, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    assert_eq!(world.with(0, |device| device.nic.violations()), []);
    assert!(client.dma_unmap(0x10_0000, mapping.bytes() as u64).is_ok());

    // The next client finds a NIC as after power-on.
    drop(client);
    let mut client = Client::new(&path).unwrap();
    assert_eq!(read(&mut client, RXCTRL.offset()), 0);
    drop(client);
    let (first, second) = serving.join().unwrap();
    first.unwrap();
    second.unwrap();
}

/// The registers of the queues are written in mapped pages, the others by messages.
#[test]
fn a_client_maps_the_queues_registers_and_loops_frames() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic.sock");
    let world = Shared::new(&[Board::default()], Impairment::default());
    let mut server = Server::mapped(&path, &world, 0).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let serving = thread::spawn(move || server.serve());
    let time = thread::spawn({
        let (world, stop) = (world.clone(), stop.clone());
        move || world.run(&stop)
    });
    let mut client = Client::new(&path).unwrap();
    let on = (command::MEMORY | command::BUS_MASTER).to_le_bytes();
    client.region_write(VFIO_PCI_CONFIG_REGION_INDEX, config::COMMAND, &on).unwrap();
    let memory = allocate(1, HugePages::Off, None).unwrap();
    let mapping = Mapping::of_file(memory.file.as_fd(), 0, memory.memory.bytes()).unwrap();
    client.dma_map(0, 0x10_0000, mapping.bytes() as u64, memory.file.as_raw_fd()).unwrap();
    let region = client.region(BAR).unwrap();
    let areas: Vec<_> = region.sparse_areas.iter().map(|area| (area.offset, area.size)).collect();
    assert_eq!(areas, [(0x1000, 0x1000), (0x6000, 0x2000), (0xd000, 0x1000)]);
    let file = region.file_offset.as_ref().unwrap();
    let pages = Mapping::of_file(file.file().as_fd(), 0, BAR_SIZE as usize).unwrap();
    let word = |register: &Register| Word::u32_at(&pages, register.offset() as usize).unwrap();

    let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 0x88, 0xb5], &[7; 50]].concat();
    mapping.copy_in(0x8000, &frame);
    let data = tx::DTYP.with(tx::TYPE_DATA) | tx::DEXT.mask | tx::EOP.mask | tx::RS.mask | 64;
    for slot in 0..8_u32 {
        mapping.copy_in(slot as usize * 16, &desc::bytes([0x10_4000 + slot * 2048, 0, 0, 0]));
        mapping.copy_in(0x1000 + slot as usize * 16, &desc::bytes([0x10_8000, 0, data, tx::PAYLEN.with(64)]));
    }
    for (register, value) in [
        (&HLREG0, HLREG0.reset.unwrap() | HLREG0::LPBK.mask),
        (&FCTRL, FCTRL::BAM.mask),
        (&RDRXCTL, RDRXCTL::CRCSTRIP.mask | RDRXCTL::RSCACKC.mask | RDRXCTL::FCOE_WRFIX.mask),
        (&DMATXCTL, DMATXCTL::TE.mask),
        (&RXCTRL, RXCTRL::RXEN.mask),
    ] {
        write(&mut client, register.offset(), value);
    }
    for (register, value) in [
        (&RDBAL, 0x10_0000),
        (&RDLEN, 128),
        (&SRRCTL, SRRCTL::BSIZEPACKET.with(2) | SRRCTL::DESCTYPE.with(1)),
        (&TDBAL, 0x10_1000),
        (&DCA_TXCTRL, DCA_TXCTRL::DESC_RRO_EN.mask),
        (&TDLEN, 128),
        (&RXDCTL, RXDCTL::ENABLE.mask),
        (&TXDCTL, TXDCTL::ENABLE.mask),
        (&RDT, 7),
    ] {
        word(register).store(value, Release);
    }
    // Seven frames, one after the other.
    let (tail, deadline) = (word(&TDT), Instant::now() + Duration::from_secs(10));
    for slot in 0..7 {
        tail.store(slot + 1, Release);
        let done = || desc::words(mapping.read::<[u8; 16]>(slot as usize * 16).unwrap());
        while !rx::DD.is_set(done()[2]) {
            assert!(Instant::now() < deadline, "frame {slot} does not come back");
            thread::yield_now();
        }
        assert_eq!(rx::LENGTH.of(done()[3]), 64);
    }
    // A message shows what was written before it, and the pages what it did.
    word(&TDT).store(0, Release);
    assert_eq!(read(&mut client, TDT.offset()), 0);
    assert_eq!(read(&mut client, QPRC.offset()), 7);
    write(&mut client, CTRL.offset(), CTRL::RST.mask);
    assert_eq!((word(&RXDCTL).load(Acquire), word(&RDLEN).load(Acquire)), (0, 0));
    assert_eq!(world.with(0, |device| device.nic.violations()), []);
    drop(client);
    stop.store(true, Relaxed);
    serving.join().unwrap().unwrap();
    time.join().unwrap();
}

/// Nobody looks at the pages while a queue is set up, enabled and given its buffers; then a message comes.
#[test]
fn a_mapped_queue_that_was_set_up_unseen_starts_before_its_tail_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic.sock");
    let world = Shared::new(&[Board::default()], Impairment::default());
    let mut server = Server::mapped(&path, &world, 0).unwrap();
    let serving = thread::spawn(move || server.serve());
    let mut client = Client::new(&path).unwrap();
    let region = client.region(BAR).unwrap();
    let file = region.file_offset.as_ref().unwrap();
    let pages = Mapping::of_file(file.file().as_fd(), 0, BAR_SIZE as usize).unwrap();
    let word = |register: &Register| Word::u32_at(&pages, register.offset() as usize).unwrap();
    let mut write_unseen = |values: &[(&Register, u32)]| {
        values.iter().for_each(|(register, value)| word(register).store(*value, Release));
        // Longer than the model ever leaves the pages alone.
        thread::sleep(Duration::from_millis(5));
        read(&mut client, STATUS.offset());
        (read(&mut client, RDBAL.offset()), read(&mut client, RDT.offset()))
    };
    let set_up = |low| {
        let srrctl = SRRCTL::BSIZEPACKET.with(2) | SRRCTL::DESCTYPE.with(1);
        [(&RDBAL, low), (&RDLEN, 128), (&SRRCTL, srrctl), (&RXDCTL, RXDCTL::ENABLE.mask), (&RDT, 7)]
    };
    assert_eq!(write_unseen(&set_up(0x10_0000)), (0x10_0000, 7));
    // It ends, and starts again elsewhere.
    assert_eq!(write_unseen(&[(&RXDCTL, 0), (&RDT, 0), (&RDBAL, 0)]), (0, 0));
    assert_eq!(write_unseen(&set_up(0x20_0000)), (0x20_0000, 7));
    assert_eq!(world.with(0, |device| device.nic.violations()), []);
    drop(client);
    serving.join().unwrap().unwrap();
}

#[test]
fn two_registers_may_be_accessed_at_once_and_halves_of_one_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic.sock");
    let world = Shared::new(&[Board::default()], Impairment::default());
    let mut server = Server::new(&path, &world, 0).unwrap();
    let serving = thread::spawn(move || server.serve());
    let mut client = Client::new(&path).unwrap();
    let pair = u64::from(RDBAL.offset());
    client.region_write(BAR, pair, &0x0000_0012_3456_7880_u64.to_le_bytes()).unwrap();
    assert_eq!((read(&mut client, RDBAL.offset()), read(&mut client, RDBAH.offset())), (0x3456_7880, 0x12));
    let mut both = [0; 8];
    client.region_read(BAR, pair, &mut both).unwrap();
    assert_eq!(u64::from_le_bytes(both), 0x0000_0012_3456_7880);
    client.region_write(BAR, pair, &[1, 0]).unwrap();
    assert_eq!(read(&mut client, RDBAL.offset()), 0x3456_7880);
    let broken = world.with(0, |device| device.nic.violations());
    assert_eq!(broken.len(), 1, "{broken:?}");
    assert_eq!(
        broken[0].to_string(),
        "(none)[0]: access to 2 bytes at 0x1000: registers are words of 32 bits"
    );
    drop(client);
    serving.join().unwrap().unwrap();
}

#[test]
fn a_socket_left_behind_is_replaced_and_a_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let world = Shared::new(&[Board::default()], Impairment::default());
    let path = folder.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(Server::new(&path, &world, 0).is_ok());
    let path = folder.path().join("file");
    std::fs::write(&path, "mine").unwrap();
    let error = Server::new(&path, &world, 0).err().unwrap();
    assert!(matches!(error, ServeError::Exists(_)), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn a_client_that_talks_nonsense_loses_only_its_own_session() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic.sock");
    let world = Shared::new(&[Board::default()], Impairment::default());
    let mut server = Server::new(&path, &world, 0).unwrap();
    let serving = thread::spawn(move || (server.serve(), server.serve()));
    // Version 0.0 with four bytes of capabilities that do not end in a zero.
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let mut message = vec![0; 24];
    (message[2], message[4]) = (1, 24);
    message[20..].copy_from_slice(b"{{{{");
    stream.write_all(&message).unwrap();
    let mut client = Client::new(&path).unwrap();
    assert_eq!(read(&mut client, STATUS.offset()) & STATUS::GIO.mask, STATUS::GIO.mask);
    drop((client, stream));
    let (first, second) = serving.join().unwrap();
    assert!(matches!(first, Err(ServeError::Malformed(_))));
    second.unwrap();
}
