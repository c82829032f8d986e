//! Two models of the 82599 on a cable, served to a guest.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use bywash_lab::guest::{ATTEMPTS, Machine};
use bywash_models::cable::Impairment;
use bywash_models::ixgbe::Board;
use bywash_models::server::Server;
use bywash_models::world::Shared;

/// The left one has an SFP cage, the right one none.
const DEVICES: [u16; 2] = [0x10fb, 0x10f8];

/// The models, while they are served.
pub(crate) struct Served {
    world: Shared,
    sockets: Vec<PathBuf>,
    stop: Arc<AtomicBool>,
    _folder: tempfile::TempDir,
}

impl Served {
    pub(crate) fn new() -> Self {
        let boards =
            [0, 1].map(|i: u8| Board { device: DEVICES[usize::from(i)], mac: [2, 0, 0, 0, 0, i + 1] });
        let world = Shared::new(&boards, Impairment::default());
        let folder = tempfile::tempdir().unwrap();
        let sockets: Vec<PathBuf> = (0..2).map(|i| folder.path().join(format!("{i}.sock"))).collect();
        for (i, socket) in sockets.iter().enumerate() {
            let mut server = Server::new(socket, &world, i).unwrap();
            thread::spawn(move || (0..ATTEMPTS).for_each(|_| drop(server.serve())));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let time = (world.clone(), stop.clone());
        thread::spawn(move || time.0.run(&time.1));
        Self { world, sockets, stop, _folder: folder }
    }

    /// A guest with both of them.
    pub(crate) fn machine(&self) -> Machine {
        self.sockets.iter().fold(Machine::default(), |machine, socket| machine.vfio_user(socket))
    }

    /// A frame arrives at the left one from its cable, as if from the right one.
    pub(crate) fn arrive(&self, frame: &[u8]) {
        self.world.with(0, |device| device.nic.receive(frame.into(), true));
    }

    /// Whether the left one has cut packets into segments, and what it was asked to do that the datasheet forbids.
    pub(crate) fn cut_and_violations(&self) -> (bool, Vec<String>) {
        self.world.with(0, |device| {
            let broken = device.nic.violations().iter().map(ToString::to_string).collect();
            (device.nic.observed().tso_packets > 100, broken)
        })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}
