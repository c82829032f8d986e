//! Programs of our own inside a guest, for what the packet tools have no option for: this test program itself, which finds its orders
//! in its environment, and drives a NIC by the library.

#![expect(clippy::print_stdout, reason = "the test outside reads what it says")]

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywash_drivers::port::frame::{Arena, Batch, Checksum, Packet, Pool, Stride};
use bywash_drivers::port::{Port, PortName};
use bywash_drivers::{igb, igbvf};
use bywash_sys::function::{DeviceAddresses, DmaMemory, Function, FunctionError};
use bywash_sys::memory::{HugePages, allocate};
use bywash_sys::pci::Device;
use bywash_sys::vfio::Vfio;

/// Where the orders are: what to do, and the NIC's address.
const ORDERS: &str = "BYWASH_TEST_PROGRAM";

/// What a virtual function is opened with by `listen-vf`.
pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 3, 0];
pub(crate) const GROUP: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];
pub(crate) const VLAN: u16 = 7;

/// A frame of this EtherType is the last.
pub(crate) const LAST: u16 = 0x88b6;

/// Longest time anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The shell's words that start it with these orders.
pub(crate) fn program(orders: &str) -> String {
    let shared = Path::new(env!("CARGO_BIN_EXE_bywash")).parent().unwrap();
    let own = std::env::current_exe().unwrap();
    let guest = PathBuf::from("/host").join(own.strip_prefix(shared).unwrap());
    format!("env {ORDERS}='{orders}' {} --exact program::does_what_it_is_told --nocapture", guest.display())
}

#[test]
fn does_what_it_is_told() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let (what, address) = orders.split_once(' ').unwrap();
    let device = Device::at(address.parse().unwrap()).unwrap();
    let function = Vfio::open(&device, "pci", false).unwrap();
    let frames = 1024;
    let memory = allocate(Stride::Packed.memory_for(frames), HugePages::Require, None).unwrap();
    let arena = Arena::new(memory.memory).unwrap();
    let pool = arena.pool(frames).unwrap();
    match what {
        "stray" => stray(function, arena, pool),
        "listen" => listen(physical(function, arena), pool),
        "listen-vf" => listen(virtual_function(function, arena), pool),
        _ => panic!("{what}: no such order"),
    }
}

/// A function whose driver is told wrong addresses of packet memory: far behind all that is mapped for it.
struct Stray(Vfio);

/// How far, in bytes.
const ASTRAY: u64 = 64 << 30;

impl Function for Stray {
    type Registers = <Vfio as Function>::Registers;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn registers(&self) -> Self::Registers {
        self.0.registers()
    }

    fn read_config(&mut self, offset: u64, to: &mut [u8]) -> Result<(), FunctionError> {
        self.0.read_config(offset, to)
    }

    fn write_config(&mut self, offset: u64, from: &[u8]) -> Result<(), FunctionError> {
        self.0.write_config(offset, from)
    }

    fn map(&mut self, memory: &DmaMemory<'_>) -> Result<DeviceAddresses, FunctionError> {
        let addresses = self.0.map(memory)?;
        let packets = memory.bytes > bywash_sys::memory::HUGE_PAGE;
        Ok(if packets { DeviceAddresses::Linear(addresses.of(0) + ASTRAY) } else { addresses })
    }

    fn unmap(&mut self, address: u64) -> Result<(), FunctionError> {
        self.0.unmap(address)
    }

    fn interrupts(&mut self, count: u16) -> Result<Vec<OwnedFd>, FunctionError> {
        self.0.interrupts(count)
    }

    fn reset(&mut self) -> Result<(), FunctionError> {
        self.0.reset()
    }
}

/// Has a virtual function read packets from where nothing is mapped for it.
fn stray(function: Vfio, arena: &'static Arena, mut pool: Pool) {
    let settings = igbvf::Settings { queues: Some(1), ring: 64, ..igbvf::Settings::default() };
    let mut port = igbvf::open(Stray(function), PortName::Null, &settings, arena).unwrap();
    port.wait_for_link(PATIENCE).unwrap();
    let mut pair = port.queues().remove(0);
    let (tx, mut batch) = (pair.tx.as_mut().unwrap(), Batch::new());
    for _ in 0..3 {
        batch.push(packet(&frame([0xff; 6], None, 0x88b5), &mut pool));
    }
    tx.tx(&mut pool, &mut batch);
    tx.flush(&mut pool);
    std::thread::sleep(Duration::from_secs(1));
    println!("strayed");
}

/// The 82576 with its offloads on that the packet tools leave off.
fn physical(function: Vfio, arena: &'static Arena) -> Box<dyn Port> {
    let settings = igb::Settings { strip_vlan: true, ring: 256, ..igb::Settings::default() };
    let mut port = igb::open(function, PortName::Null, &settings, arena).unwrap();
    port.wait_for_link(PATIENCE).unwrap();
    Box::new(port)
}

/// A function that asks its physical one for an address, a group and a VLAN of its own.
fn virtual_function(function: Vfio, arena: &'static Arena) -> Box<dyn Port> {
    let settings = igbvf::Settings {
        queues: Some(1),
        ring: 256,
        mac: Some(MAC),
        promiscuous: false,
        multicast: igbvf::Multicast::Groups(vec![GROUP]),
        vlans: vec![VLAN],
        ..igbvf::Settings::default()
    };
    let mut port = igbvf::open(function, PortName::Null, &settings, arena).unwrap();
    port.wait_for_link(PATIENCE).unwrap();
    Box::new(port)
}

/// Says what comes, up to the last frame; then sends ten frames into the VLAN, whose tag the NIC puts in.
fn listen(mut port: Box<dyn Port>, mut pool: Pool) {
    let mut pair = port.queues().remove(0);
    let (rx, tx) = (pair.rx.as_mut().unwrap(), pair.tx.as_mut().unwrap());
    let mut batch = Batch::new();
    rx.rx(&mut pool, &mut batch);
    println!("listening");
    let (deadline, mut ended) = (Instant::now() + PATIENCE, false);
    while !ended {
        assert!(Instant::now() < deadline, "the last frame does not come");
        if rx.rx(&mut pool, &mut batch) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        for packet in batch.drain() {
            let head = packet.head();
            let kind = u16::from_be_bytes([head[12], head[13]]);
            ended |= kind == LAST;
            let checksum = match packet.offload.checksum() {
                Checksum::Valid => "valid",
                Checksum::Bad => "bad",
                _ => "unknown",
            };
            let vlan = packet.offload.vlan().map_or("none".into(), |vlan| vlan.to_string());
            println!("got {:02x?} kind {kind:04x} vlan {vlan} checksum {checksum}", &head[..6]);
            pool.give_packet(packet);
        }
    }
    for _ in 0..10 {
        let mut packet = packet(&frame([0xff; 6], None, 0x88b5), &mut pool);
        packet.offload.set_vlan(Some(VLAN));
        batch.push(packet);
    }
    tx.tx(&mut pool, &mut batch);
    tx.flush(&mut pool);
    while tx.in_flight() > 0 && Instant::now() < deadline {
        tx.flush(&mut pool);
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(200));
    for counter in port.counters() {
        println!("counter {} {}", counter.name, counter.value);
    }
    let pair = (pair.tx.unwrap(), pair.rx.unwrap());
    pair.0.close(&mut pool);
    pair.1.close(&mut pool);
    port.close().unwrap();
    println!("done");
}

fn packet(bytes: &[u8], pool: &mut Pool) -> Packet {
    let mut packet = Packet::new(pool.take().unwrap());
    packet.extend_from_slice(bytes).unwrap();
    packet
}

/// The shortest frame.
pub(crate) fn frame(to: [u8; 6], vlan: Option<u16>, kind: u16) -> Vec<u8> {
    let mut frame = [&to[..], &[2, 0, 0, 0, 0, 2]].concat();
    if let Some(vlan) = vlan {
        frame.extend([0x8100, vlan].iter().flat_map(|word| word.to_be_bytes()));
    }
    frame.extend(kind.to_be_bytes());
    frame.resize(60, 0);
    frame
}
