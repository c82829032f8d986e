//! One NIC with its PCI function, or two with a cable between them, as their front ends see them: each access locks the
//! world, does its part, and lets time pass.

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bywash_hw::ixgbe::VECTORS;

use crate::cable::{Cable, Impairment};
use crate::config_space::{ConfigSpace, Effect};
use crate::dma::Maps;
use crate::doorbells::Doorbells;
use crate::host::{Host, Interrupts, Wire};
use crate::ixgbe::{Board, Nic};

/// A NIC and what its driver gave it.
#[derive(Debug)]
pub struct Device {
    /// The NIC.
    pub nic: Nic,
    /// Its configuration space.
    pub config: ConfigSpace,
    /// Memory it reaches.
    pub maps: Maps,
    /// Where its vectors go.
    pub vectors: Vectors,
    /// Pages that its driver may have mapped.
    pub doorbells: Option<Doorbells>,
}

/// Eventfds, by vector.
#[derive(Debug, Default)]
pub struct Vectors(Vec<Option<File>>);

impl Vectors {
    /// Sets vectors from `start` on.
    ///
    /// # Errors
    /// When there are not so many.
    pub fn set(&mut self, start: u32, files: Vec<File>) -> io::Result<()> {
        let start = usize::try_from(start).map_err(|_| io::ErrorKind::InvalidInput)?;
        let end = start.checked_add(files.len()).filter(|end| *end <= VECTORS as usize);
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        if self.0.len() < end {
            self.0.resize_with(end, || None);
        }
        self.0[start..end].iter_mut().zip(files).for_each(|(place, file)| *place = Some(file));
        Ok(())
    }

    /// No vectors any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Interrupts for Vectors {
    fn raise(&mut self, vector: u16) {
        if let Some(Some(file)) = self.0.get_mut(usize::from(vector)) {
            // An eventfd takes a count of 1 unless it is full, and then the reader is awake already.
            file.write_all(&1_u64.to_ne_bytes()).ok();
        }
    }
}

/// Devices, and the cable between them: two are joined, one is plugged into itself.
#[derive(Debug)]
pub struct World {
    devices: Vec<Device>,
    /// What each device sends goes into the cable of its number.
    cables: Vec<Cable>,
    start: Instant,
}

/// A world that several front ends have a hand in.
#[derive(Clone, Debug)]
pub struct Shared {
    world: Arc<Mutex<World>>,
    /// Who wants the lock: [`Shared::run`] leaves it to them, since a lock that is taken again at once is hardly ever
    /// another's turn.
    waiting: Arc<AtomicUsize>,
}

impl Shared {
    /// A world with these boards, one or two, and this cable between them.
    pub fn new(boards: &[Board], impairment: Impairment) -> Self {
        let devices = boards.iter().map(|board| Device {
            nic: Nic::new(*board),
            config: ConfigSpace::new(board),
            maps: Maps::default(),
            vectors: Vectors::default(),
            doorbells: None,
        });
        let cables = (0..)
            .zip(boards)
            .map(|(i, _)| Cable::new(Impairment { seed: impairment.seed + i, ..impairment }));
        let (devices, cables) = (devices.collect(), cables.collect());
        let world = Arc::new(Mutex::new(World { devices, cables, start: Instant::now() }));
        Self { world, waiting: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.waiting.fetch_add(1, Relaxed);
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Relaxed);
        world
    }

    /// Does something to device `index`, then lets time pass.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn with<T>(&self, index: usize, act: impl FnOnce(&mut Device) -> T) -> T {
        let mut world = self.lock();
        // What the driver wrote to mapped pages before comes first: registers, then, after a step that starts queues, tails.
        for _ in 0..2 {
            let Device { nic, doorbells, .. } = &mut world.devices[index];
            if doorbells.as_mut().is_some_and(|doorbells| doorbells.take(nic)) {
                world.step();
            }
        }
        let result = act(&mut world.devices[index]);
        world.step();
        let Device { nic, doorbells, .. } = &mut world.devices[index];
        if let Some(doorbells) = doorbells {
            doorbells.show(nic);
        }
        result
    }

    /// Lets time pass. True when there was something to do.
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Lets time pass until it is to stop: at least each 100 us, and as often as it can while a driver writes to mapped pages.
    pub fn run(&self, stop: &AtomicBool) {
        let mapped = self.lock().devices.iter().any(|device| device.doorbells.is_some());
        let mut idle = 0;
        while !stop.load(Relaxed) {
            idle = if mapped && self.step_without_waiting() { 0 } else { idle + 1 };
            if mapped && idle < SPINS {
                // Not while there is work: it takes as long as a packet does.
                if idle > 0 {
                    std::hint::spin_loop();
                }
            } else {
                self.step();
                thread::sleep(TICK);
            }
        }
    }

    /// As [`Shared::step`], but not while a message is being answered: that does it as well.
    fn step_without_waiting(&self) -> bool {
        if self.waiting.load(Relaxed) > 0 {
            thread::yield_now();
            return true;
        }
        match self.world.try_lock() {
            Ok(mut world) => world.step(),
            Err(_) => true,
        }
    }
}

/// How often time passes for NICs that nobody touches.
const TICK: Duration = Duration::from_micros(100);

/// Looks at mapped pages, without anything found, before the processor is left to others.
const SPINS: u32 = 20_000;

/// A cable's end at a time.
struct Plug<'a> {
    cable: &'a mut Cable,
    now: u64,
}

impl Wire for Plug<'_> {
    fn send(&mut self, frame: Vec<u8>) {
        self.cable.send(frame, self.now);
    }
}

impl World {
    fn step(&mut self) -> bool {
        let now = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut busy = false;
        // A second round carries at once what the first has sent, if the cable takes no time.
        for _ in 0..2 {
            for index in 0..self.devices.len() {
                let from = self.devices.len() - 1 - index;
                let Device { nic, maps, vectors, doorbells, .. } = &mut self.devices[index];
                if let Some(doorbells) = doorbells {
                    busy |= doorbells.look(nic, now);
                }
                while let Some(arrival) = self.cables[from].receive(now) {
                    nic.receive(arrival.frame, arrival.check_good);
                    busy = true;
                }
                let mut wire = Plug { cable: &mut self.cables[index], now };
                nic.tick(now, &mut Host { memory: maps, interrupts: vectors, wire: &mut wire });
            }
        }
        busy
    }
}

impl Device {
    /// Copies bytes of configuration space out.
    ///
    /// # Errors
    /// When they do not lie in it.
    pub fn read_config(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        if self.config.read(offset, to) { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// Writes bytes of configuration space.
    ///
    /// # Errors
    /// When they do not lie in it.
    pub fn write_config(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        match self.config.write(offset, from).ok_or(io::ErrorKind::InvalidInput)? {
            Effect::None => {}
            Effect::Command => self.nic.set_bus_master(self.config.bus_master()),
            Effect::Reset => self.reset(),
        }
        Ok(())
    }

    /// Function level reset.
    pub fn reset(&mut self) {
        self.nic.function_reset();
        self.config = ConfigSpace::new(&self.nic.board());
    }
}
