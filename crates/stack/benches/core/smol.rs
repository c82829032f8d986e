//! What is measured of smoltcp: the same bulk transfer, over a wire that does not allocate either.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use crate::ours::{Done, Until};

/// What a round takes at the speed aimed at, in microseconds.
const ROUND_MICROS: i64 = 50;

/// Packets on their way, and buffers to be used again.
#[derive(Default)]
struct Wire {
    packets: VecDeque<Vec<u8>>,
    free: Vec<Vec<u8>>,
    /// All that went over it.
    sent: u64,
}

type Shared = Rc<RefCell<Wire>>;

struct End {
    receive: Shared,
    send: Shared,
}

impl End {
    fn sent(&self) -> u64 {
        self.send.borrow().sent
    }
}

struct Received(Vec<u8>, Shared);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.0);
        self.1.borrow_mut().free.push(self.0);
        result
    }
}

struct Sending(Shared);

impl TxToken for Sending {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut buffer = self.0.borrow_mut().free.pop().unwrap_or_else(|| Vec::with_capacity(2048));
        buffer.resize(len, 0);
        let result = f(&mut buffer);
        let mut wire = self.0.borrow_mut();
        wire.packets.push_back(buffer);
        wire.sent += 1;
        result
    }
}

impl Device for End {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending;

    fn receive(&mut self, _now: Instant) -> Option<(Received, Sending)> {
        let packet = self.receive.borrow_mut().packets.pop_front()?;
        Some((Received(packet, self.receive.clone()), Sending(self.send.clone())))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Sending> {
        (self.send.borrow().packets.len() < 64).then(|| Sending(self.send.clone()))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

struct Host {
    device: End,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
}

impl Host {
    fn new(number: u8, mut device: End) -> Self {
        let config = Config::new(EthernetAddress([2, 0, 0, 0, 0, number]).into());
        let mut interface = Interface::new(config, &mut device, Instant::ZERO);
        interface.update_ip_addrs(|all| all.push(IpCidr::new(IpAddress::v4(10, 0, 0, number), 24)).unwrap());
        let buffer = || tcp::SocketBuffer::new(vec![0; 256 << 10]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(tcp::Socket::new(buffer(), buffer()));
        Self { device, interface, sockets, socket }
    }

    /// Does all there is to do: one poll sends one segment of a socket.
    fn poll(&mut self, now: Instant) {
        while self.interface.poll(now, &mut self.device, &mut self.sockets) == PollResult::SocketStateChanged
        {
        }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.socket)
    }
}

/// Bytes of payload, from one end to the other.
pub(crate) fn bulk(until: Until) -> Done {
    let (one, other) = (Shared::default(), Shared::default());
    let mut a = Host::new(1, End { receive: one.clone(), send: other.clone() });
    let mut b = Host::new(2, End { receive: other, send: one });
    b.socket().listen(80).unwrap();
    let context = a.interface.context();
    a.sockets
        .get_mut::<tcp::Socket>(a.socket)
        .connect(context, (IpAddress::v4(10, 0, 0, 2), 80), 5000)
        .unwrap();
    measured(&mut a, &mut b, until)
}

/// Everything inside is what is measured: the name is what a profiler is told.
#[inline(never)]
fn measured(a: &mut Host, b: &mut Host, until: Until) -> Done {
    let source = vec![0x5a; 64 << 10];
    let mut sink = vec![0; 64 << 10];
    let (start, mut amount, mut rounds) = (std::time::Instant::now(), 0, 0);
    loop {
        let elapsed = start.elapsed();
        // As for ours: under an instruction counter the clock goes on by what is done.
        let (over, micros) = match until {
            Until::Time(time) => (elapsed >= time, i64::try_from(elapsed.as_micros()).unwrap()),
            Until::Rounds(all) => (rounds >= all, rounds.cast_signed() * ROUND_MICROS),
        };
        if over {
            break;
        }
        let now = Instant::from_micros(micros);
        if a.socket().can_send() {
            a.socket().send_slice(&source).unwrap();
        }
        a.poll(now);
        b.poll(now);
        while b.socket().can_recv() {
            amount += b.socket().recv_slice(&mut sink).unwrap() as u64;
        }
        b.poll(now);
        rounds += 1;
    }
    let packets = a.device.sent() + b.device.sent();
    Done { amount, packets, time: start.elapsed() }
}
