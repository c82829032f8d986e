//! A worker: a port, a stack, and two programs on it, an echo server and an upload.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bywash_drivers::port::{Port, RxQueue, TxQueue};
use bywash_drivers::tap::{self, TapPort};
use bywash_lab::Host as Machine;
use bywash_lab::sys::route::{Mac as KernelMac, Prefix};
use bywash_stack::frame::{Arena, Batch, FRAME_SIZE, Pool};
use bywash_stack::wire::Mac;
use bywash_stack::{ConnectionId, Event, Host, Interface, Medium, Offloads, PortId, Timestamp, UdpId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// No wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Where the echo server is, of TCP and of UDP.
pub(crate) const ECHO: u16 = 7;
/// The addresses of both ends, with their prefix lengths: IPv4's, then IPv6's.
pub(crate) const KERNEL: [(&str, u8); 2] = [("10.1.0.1", 24), ("fd01::1", 64)];
pub(crate) const OURS: [(&str, u8); 2] = [("10.1.0.2", 24), ("fd01::2", 64)];

const MAC: Mac = Mac([2, 0, 0, 0, 1, 2]);
const PORT: PortId = PortId(0);
const FRAMES: usize = 8000;

pub(crate) struct Worker {
    stack: Host,
    port: Option<TapPort>,
    rx: Option<Box<dyn RxQueue>>,
    tx: Option<Box<dyn TxQueue>>,
    pool: Pool,
    batch: Batch,
    start: Instant,
    echo: UdpId,
    upload: Option<(ConnectionId, Vec<u8>, usize)>,
    /// Connections whose peer has said all, and which still have something to send.
    ending: Vec<ConnectionId>,
}

impl Worker {
    /// A stack at the other end of a tap of a machine that has the kernel's addresses.
    pub(crate) fn on(machine: &Machine, offload: bool) -> Self {
        let arena = Arena::new(vec![0; (FRAMES + 128) * FRAME_SIZE]).unwrap();
        let options = tap::Options { offload, mac: Some([2, 0, 0, 0, 1, 1]), ..tap::Options::default() };
        let mut port = machine.enter(|| tap::open("tap0", &options, arena)).unwrap().unwrap();
        let queue = port.queues().pop().unwrap();
        let link = machine.link("tap0").unwrap();
        assert_eq!(link.mac, Some(KernelMac([2, 0, 0, 0, 1, 1])));
        for (address, length) in KERNEL {
            machine.add_address(link.index, Prefix { address: address.parse().unwrap(), length }).unwrap();
        }
        let mut pool = arena.pool(FRAMES).unwrap();
        let mut stack = Host::new([9; 16], &mut pool);
        let capabilities = port.capabilities();
        // Without them, packets are made as for a wire.
        let offloads = Offloads {
            checksum: offload && capabilities.tx_checksum,
            segmentation: offload && capabilities.segmentation,
        };
        let id = stack
            .control
            .add_interface(Interface {
                name: "tap0".into(),
                port: PORT,
                medium: Medium::Ethernet { mac: MAC, vlan: None },
                mtu: 1500,
                offloads,
            })
            .unwrap();
        for (address, length) in OURS {
            let prefix = format!("{address}/{length}").parse().unwrap();
            stack.control.add_address(Timestamp::ZERO, id, prefix).unwrap();
        }
        stack.stack.listen(None, ECHO, 16).unwrap();
        let echo = stack.stack.udp_bind(None, ECHO).unwrap();
        let mut worker = Self {
            stack,
            port: Some(port),
            rx: queue.rx,
            tx: queue.tx,
            pool,
            batch: Batch::new(),
            start: Instant::now(),
            echo,
            upload: None,
            ending: Vec::new(),
        };
        // The IPv6 address is looked for on the link first.
        while worker.stack.control.is_settling() {
            let start = Instant::now();
            worker.serve_until(|| start.elapsed() > Duration::from_millis(10));
        }
        worker
    }

    /// Works while something else goes on, in this thread's stead.
    pub(crate) fn serve_while(&mut self, work: impl FnOnce() + Send) {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                // Also when it panics.
                let _finished = Finished(&done);
                work();
            });
            self.serve_until(|| done.load(Ordering::Relaxed));
            work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }

    pub(crate) fn serve_until(&mut self, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < 4 * PATIENCE, "the other end never finishes");
            if !self.turn() {
                self.sleep();
            }
        }
    }

    /// Connects, sends all bytes, and closes, as [`Worker::serve_until`] goes on.
    pub(crate) fn upload(&mut self, to: SocketAddr, bytes: &[u8]) {
        let now = self.now();
        let to = (to.ip().into(), to.port());
        let id = self.stack.stack.connect(now, (None, 0), to, &mut self.pool).unwrap();
        self.upload = Some((id, bytes.to_vec(), 0));
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.start.elapsed()
    }

    /// One turn; `false` when nothing was there to do.
    fn turn(&mut self) -> bool {
        let now = self.now();
        let received = self.rx.as_mut().unwrap().rx(&mut self.pool, &mut self.batch);
        self.stack.receive(now, PORT, &mut self.batch, &mut self.pool);
        self.programs(now);
        self.stack.advance(now, &mut self.pool);
        let tx = self.tx.as_mut().unwrap();
        let mut sent = 0;
        loop {
            self.stack.transmit(PORT, &mut self.batch);
            sent += tx.tx(&mut self.pool, &mut self.batch);
            tx.flush(&mut self.pool);
            if self.batch.is_empty() {
                break;
            }
        }
        received + sent > 0
    }

    fn sleep(&mut self) {
        let rx = self.rx.as_mut().unwrap();
        if !rx.arm() {
            return;
        }
        let now = Timestamp::ZERO + self.start.elapsed();
        let until = self.stack.next_deadline().map_or(Duration::from_millis(5), |at| at.since(now));
        let nanos = i64::try_from(until.min(Duration::from_millis(5)).as_nanos()).unwrap();
        let timeout = Timespec { tv_sec: 0, tv_nsec: nanos };
        let wake = rx.wake_fd().unwrap();
        poll(&mut [PollFd::from_borrowed_fd(wake, PollFlags::IN)], Some(&timeout)).unwrap();
    }

    fn programs(&mut self, now: Timestamp) {
        for event in self.stack.stack.events().collect::<Vec<_>>() {
            match event {
                Event::UdpReadable(_) => self.echo_datagrams(now),
                Event::Connected(id) => self.push(now, id),
                Event::Readable(id) => self.echo_bytes(now, id),
                Event::Writable(id) if self.upload.as_ref().is_some_and(|(up, ..)| *up == id) => {
                    self.push(now, id);
                }
                Event::Writable(id) => self.echo_bytes(now, id),
                Event::PeerClosed(id) => {
                    self.ending.push(id);
                    self.echo_bytes(now, id);
                }
                _ => {}
            }
        }
    }

    fn echo_datagrams(&mut self, now: Timestamp) {
        while let Some(datagram) = self.stack.stack.udp_receive(self.echo).unwrap() {
            let bytes = datagram.slices().collect::<Vec<_>>().concat();
            let to = Some(datagram.source);
            datagram.release(&mut self.pool);
            self.stack.stack.udp_send(now, self.echo, to, &bytes, &mut self.pool).unwrap();
        }
    }

    /// Sends back what a connection has brought, as far as there is room, and closes it when that is all.
    fn echo_bytes(&mut self, now: Timestamp, id: ConnectionId) {
        let Ok(readable) = self.stack.stack.readable(id) else { return };
        let bytes = readable.collect::<Vec<_>>().concat();
        let sent = self.stack.stack.send(now, id, &bytes, &mut self.pool).unwrap_or(0);
        self.stack.stack.consume(now, id, sent, &mut self.pool).unwrap();
        if sent == bytes.len() && self.ending.contains(&id) {
            self.ending.retain(|other| *other != id);
            self.stack.stack.close(now, id, &mut self.pool).unwrap();
        }
    }

    fn push(&mut self, now: Timestamp, id: ConnectionId) {
        let Some((_, bytes, at)) = &mut self.upload else { return };
        *at += self.stack.stack.send(now, id, &bytes[*at..], &mut self.pool).unwrap();
        if *at == bytes.len() {
            self.upload = None;
            self.stack.stack.close(now, id, &mut self.pool).unwrap();
        }
    }

    /// Closes the port; nothing of it stays.
    pub(crate) fn close(mut self) {
        self.rx.take().unwrap().close(&mut self.pool);
        self.tx.take().unwrap().close(&mut self.pool);
        Box::new(self.port.take().unwrap()).close().unwrap();
    }
}

struct Finished<'a>(&'a AtomicBool);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
