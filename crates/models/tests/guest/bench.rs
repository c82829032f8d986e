//! Two models with a cable between them, served to a guest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use bywash_lab::guest::{ATTEMPTS, Machine};
use bywash_models::cable::Impairment;
use bywash_models::ixgbe::Board;
use bywash_models::server::{ServeError, Server};
use bywash_models::world::Shared;
use bywash_wire::Ipv4Header;
use bywash_wire::zerocopy::IntoBytes;

/// The world, and the threads that serve it and let its time pass.
pub(crate) struct Bench {
    pub(crate) world: Shared,
    sockets: Vec<PathBuf>,
    stop: Arc<AtomicBool>,
    ticker: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

/// MAC addresses of the models.
pub(crate) const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0x82, 0x59, 1], [2, 0, 0, 0x82, 0x59, 2]];

impl Bench {
    /// Two boards with these PCI device ids.
    pub(crate) fn new(devices: [u16; 2]) -> Self {
        Self::with(devices, Server::new)
    }

    /// Two boards whose queue registers are mapped.
    pub(crate) fn mapped(devices: [u16; 2]) -> Self {
        Self::with(devices, Server::mapped)
    }

    fn with(devices: [u16; 2], offer: fn(&Path, &Shared, usize) -> Result<Server, ServeError>) -> Self {
        let boards = [0, 1].map(|i| Board { device: devices[i], mac: MACS[i] });
        let world = Shared::new(&boards, Impairment::default());
        let folder = tempfile::tempdir().unwrap();
        let sockets: Vec<PathBuf> = (0..2).map(|i| folder.path().join(format!("{i}.sock"))).collect();
        for (i, socket) in sockets.iter().enumerate() {
            let mut server = offer(socket, &world, i).unwrap();
            thread::spawn(move || (0..ATTEMPTS).for_each(|_| drop(server.serve())));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let ticker = thread::spawn({
            let (world, stop) = (world.clone(), stop.clone());
            move || world.run(&stop)
        });
        Self { world, sockets, stop, ticker: Some(ticker), _folder: folder }
    }

    /// A guest with both of them.
    pub(crate) fn machine(&self) -> Machine {
        self.sockets.iter().fold(Machine::default(), |machine, socket| machine.vfio_user(socket))
    }

    /// A frame arrives at the left one from its cable, as if from the right one.
    pub(crate) fn arrive(&self, frame: &[u8]) {
        self.world.with(0, |device| device.nic.receive(frame.into(), true));
    }

    /// Rules that were broken since the last call, each once with how often.
    pub(crate) fn violations(&self) -> BTreeMap<String, u32> {
        let mut all = BTreeMap::new();
        for i in 0..2 {
            for violation in self.world.with(i, |device| device.nic.violations()) {
                *all.entry(format!("{i}: {violation}")).or_default() += 1;
            }
        }
        all
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(ticker) = self.ticker.take() {
            // It panicked only if a model did, which the test has seen.
            ticker.join().ok();
        }
    }
}

/// A UDP packet to the left end's address, without a checksum of its own.
pub(crate) fn udp(source: [u8; 4], from: u16, to: u16) -> Vec<u8> {
    let payload = [0; 40];
    let length = u16::try_from(8 + payload.len()).unwrap();
    let ip = Ipv4Header::new(source.into(), [192, 0, 2, 1].into(), 17, length);
    let mut frame = [&MACS[0][..], &[2, 0, 0, 0, 0, 9], &[8, 0]].concat();
    frame.extend_from_slice(ip.as_bytes());
    frame.extend([from, to, length, 0].iter().flat_map(|word| word.to_be_bytes()));
    frame.extend_from_slice(&payload);
    frame
}
