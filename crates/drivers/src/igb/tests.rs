//! Opening a NIC of which bits are stuck: each such fault is an error that names the register.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bywash_frame::Stride;
use bywash_hw::igb::regs::{
    CTRL, CTRL_EXT, EEC, EERD, MDIC, RAH, RAL, RDLEN, RQDPC, RXDCTL, STATUS, SW_FW_SYNC, SWSM, TCTL, TDLEN,
    TXDCTL,
};
use bywash_hw::ixgbe::eeprom::{CHECKSUM_SUM, CHECKSUM_WORD};
use bywash_hw::pci::config;
use bywash_hw::reg::{Field, Register};
use bywash_port::Port;
use bywash_sys::function::{DeviceAddresses, DmaMemory, FunctionError};
use bywash_sys::memory::{HugePages, allocate};

use super::*;
use crate::intel::retire;

/// Bits that always read as 1, or as 0, whatever the NIC does.
type Stuck = (&'static Register, Field, bool);

/// The firmware's bit of SW_FW_SYNC that keeps others away from the EEPROM.
const FIRMWARE_EEPROM: Field = Field::new(&[16]);

/// As much of an 82576 as opening one sees: what is written stays, resets and orders are done at once.
#[derive(Clone, Debug)]
struct Board {
    words: Arc<Mutex<BTreeMap<u32, u32>>>,
    stuck: Vec<Stuck>,
    gone: bool,
    /// How often it was reset from outside.
    resets: Arc<Mutex<u32>>,
    /// What was written too early.
    early: Arc<Mutex<Vec<&'static str>>>,
}

impl Board {
    fn new(stuck: &[Stuck]) -> Self {
        let words = [
            (&EEC, EEC::PRES.mask | EEC::AUTO_RD.mask),
            (&STATUS, STATUS::GIO_MASTER_EN.mask),
            (&RAL, u32::from_le_bytes([2, 0, 0, 0])),
            (&RAH, u32::from_le_bytes([0, 7, 0, 0])),
        ];
        let words = words.map(|(register, value)| (register.offset(), value)).into();
        Self {
            words: Arc::new(Mutex::new(words)),
            stuck: stuck.to_vec(),
            gone: false,
            resets: Arc::default(),
            early: Arc::default(),
        }
    }

    /// A write that is not to come yet, while the first queues are on, or while they are off.
    fn check(&self, offset: u32, value: u32) {
        let on = |control: &Register| self.get(control) & RXDCTL::ENABLE.mask != 0;
        let early = [
            ("RDLEN", offset == RDLEN.offset() && on(&RXDCTL)),
            ("TDLEN", offset == TDLEN.offset() && on(&TXDCTL)),
            ("TCTL", offset == TCTL.offset() && TCTL::EN.is_set(value) && !on(&TXDCTL)),
        ];
        self.early.lock().unwrap().extend(early.iter().filter(|(_, early)| *early).map(|(name, _)| *name));
    }

    fn get(&self, register: &Register) -> u32 {
        self.words.lock().unwrap().get(&register.offset()).copied().unwrap_or(0)
    }

    fn put(&self, register: &Register, value: u32) {
        self.words.lock().unwrap().insert(register.offset(), value);
    }
}

impl Registers for Board {
    fn read32(&self, offset: u32) -> u32 {
        if self.gone {
            return u32::MAX;
        }
        let mut value = self.words.lock().unwrap().get(&offset).copied().unwrap_or(0);
        for (register, field, set) in &self.stuck {
            if register.offset() == offset {
                value = if *set { value | field.mask } else { value & !field.mask };
            }
        }
        if offset == SWSM.offset() {
            self.put(&SWSM, value | SWSM::SMBI.mask);
        }
        value
    }

    fn write32(&self, offset: u32, value: u32) {
        self.check(offset, value);
        let value = match offset {
            at if at == CTRL.offset() => {
                // A reset that never ends has no other effect either.
                let resets = CTRL::RST.is_set(value)
                    && !self.stuck.iter().any(|(register, ..)| register.name == "CTRL");
                let value = if resets { 0 } else { value & !CTRL::RST.mask };
                if resets {
                    [&RXDCTL, &TXDCTL].iter().for_each(|control| self.put(control, RXDCTL::ENABLE.mask));
                }
                self.put(&STATUS, STATUS::GIO_MASTER_EN.with(u32::from(!CTRL::GIO_DIS.is_set(value))));
                value
            }
            // All words are 0 but the one that makes the sum right.
            at if at == EERD.offset() => {
                let last = EERD::ADDR.of(value) == u32::from(CHECKSUM_WORD);
                let word = if last { u32::from(CHECKSUM_SUM) } else { 0 };
                EERD::DATA.with(word) | EERD::DONE.mask
            }
            at if at == MDIC.offset() => value | MDIC::READY.mask,
            _ => value,
        };
        self.words.lock().unwrap().insert(offset, value);
    }
}

impl Function for Board {
    type Registers = Self;

    fn name(&self) -> &str {
        "board"
    }

    fn registers(&self) -> Self {
        self.clone()
    }

    fn read_config(&mut self, offset: u64, to: &mut [u8]) -> Result<(), FunctionError> {
        to.fill(0);
        if offset == config::VENDOR {
            to.copy_from_slice(&[0x86, 0x80, 0xc9, 0x10][..to.len()]);
        }
        Ok(())
    }

    fn write_config(&mut self, _: u64, _: &[u8]) -> Result<(), FunctionError> {
        Ok(())
    }

    fn map(&mut self, _: &DmaMemory<'_>) -> Result<DeviceAddresses, FunctionError> {
        Ok(DeviceAddresses::Linear(0))
    }

    fn unmap(&mut self, _: u64) -> Result<(), FunctionError> {
        Ok(())
    }

    fn interrupts(&mut self, _: u16) -> Result<Vec<OwnedFd>, FunctionError> {
        Ok(Vec::new())
    }

    fn reset(&mut self) -> Result<(), FunctionError> {
        *self.resets.lock().unwrap() += 1;
        Ok(())
    }
}

fn arena() -> &'static Arena {
    Arena::new(allocate(Stride::Packed.memory_for(512), HugePages::Off, None).unwrap().memory).unwrap()
}

fn settings() -> Settings {
    Settings { watch: None, ring: 64, ..Settings::default() }
}

#[test]
fn each_bit_that_is_stuck_is_an_error_that_names_its_register() {
    let arena = arena();
    let cases: [(&[Stuck], &str); 11] = [
        (&[(&CTRL, CTRL::RST, true)], "CTRL[0] is 0x"),
        (&[(&EEC, EEC::PRES, false), (&EEC, EEC::AUTO_RD, false)], "EEC is 0x"),
        (&[(&SWSM, SWSM::SMBI, true)], "SWSM[0] is 0x00000001"),
        (&[(&SWSM, SWSM::SWESMBI, false)], "the firmware keeps the semaphore"),
        (&[(&SW_FW_SYNC, FIRMWARE_EEPROM, true)], "SW_FW_SYNC[0] is 0x00010000"),
        (&[(&EERD, EERD::DONE, false)], "EERD[0] is 0x"),
        (&[(&EERD, Field::new(&[16]), true)], "the EEPROM's checksum is wrong: its words add up to 0x"),
        (&[(&MDIC, MDIC::READY, false)], "MDIC[0] is 0x"),
        (&[(&MDIC, MDIC::ERROR, true)], "MDIC is 0x"),
        (&[(&RXDCTL, RXDCTL::ENABLE, false)], "RXDCTL[0] is 0x"),
        (&[(&TXDCTL, TXDCTL::ENABLE, false)], "TXDCTL[0] is 0x"),
    ];
    for (stuck, words) in cases {
        let begun = Instant::now();
        let error = open(Board::new(stuck), PortName::Null, &settings(), arena).err().unwrap().to_string();
        assert!(error.contains(words), "{stuck:?}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(4), "{error} took {:?}", begun.elapsed());
    }
    let gone = Board { gone: true, ..Board::new(&[]) };
    let error = open(gone, PortName::Null, &settings(), arena).err().unwrap();
    assert!(matches!(error, NicError::Gone), "{error}");
}

#[test]
fn a_nic_without_stuck_bits_opens_and_gives_its_semaphores_back() {
    let board = Board::new(&[]);
    let arena = arena();
    let mut port = open(board.clone(), PortName::Null, &settings(), arena).unwrap();
    let mut queues = port.queues();
    assert_eq!((port.mac(), queues.len()), (Some([2, 0, 0, 0, 0, 7]), 1));
    let early = board.early.lock().unwrap().clone();
    assert_eq!(early, [""; 0]);
    assert!(TCTL::EN.is_set(board.get(&TCTL)));
    assert_eq!((board.get(&SWSM), board.get(&SW_FW_SYNC)), (0, 0));
    assert_eq!(board.get(&CTRL_EXT), CTRL_EXT::DRV_LOAD.mask);
    let begun = Instant::now();
    queues.remove(0).tx.unwrap().close(&mut arena.pool(64).unwrap());
    assert!(begun.elapsed() >= Duration::from_millis(10), "what it had begun to send is sent");
    Box::new(port).close().unwrap();
    assert_eq!(board.get(&STATUS), 0, "no more requests on the bus");
    assert_eq!(board.get(&CTRL_EXT), 0, "the firmware knows that the driver has gone");
}

#[test]
fn a_bus_that_does_not_become_quiet_is_reset_and_an_error_when_the_port_is_closed() {
    let board = Board::new(&[(&STATUS, STATUS::GIO_MASTER_EN, true)]);
    let port = open(board.clone(), PortName::Null, &settings(), arena()).unwrap();
    let errors = Box::new(port).close().unwrap_err();
    assert!(errors.len() == 1 && errors[0].starts_with("STATUS[0] is 0x"), "{errors:?}");
    assert_eq!(*board.resets.lock().unwrap(), 1);
}

#[test]
fn what_a_killed_driver_has_not_given_back_is_taken_after_a_second() {
    let arena = arena();
    for held in [SW_FW_SYNC::SW_EEP.mask, SW_FW_SYNC::SW_PHY0.mask] {
        let board = Board::new(&[]);
        board.put(&SW_FW_SYNC, held);
        let begun = Instant::now();
        let port = open(board.clone(), PortName::Null, &settings(), arena).unwrap();
        let took = begun.elapsed();
        assert!((Duration::from_secs(1)..Duration::from_secs(5)).contains(&took), "{held:#x}: {took:?}");
        assert_eq!((board.get(&SWSM), board.get(&SW_FW_SYNC)), (0, 0));
        Box::new(port).close().unwrap();
        // The firmware has it as well: it stays with it.
        let board = Board::new(&[]);
        board.put(&SW_FW_SYNC, held | held << 16);
        let error = open(board.clone(), PortName::Null, &settings(), arena).err().unwrap().to_string();
        assert!(error.contains("the firmware keeps the semaphore"), "{error}");
        assert_eq!(board.get(&SW_FW_SYNC), held | held << 16);
    }
}

#[test]
fn what_queues_drop_is_counted_in_twelve_bits() {
    let board = Board::new(&[]);
    let port = open(board.clone(), PortName::Null, &settings(), arena()).unwrap();
    let put = |queue, value| board.clone().words.lock().unwrap().insert(RQDPC.at(queue), value);
    put(0, 0xfedc_b005);
    put(15, 0xfff);
    let counters = port.counters();
    let dropped = counters.iter().find(|counter| counter.name == "rx_no_descriptor").unwrap();
    assert_eq!(dropped.value, 5 + 0xfff);
}

#[test]
fn a_nic_that_does_not_stop_is_reset_from_outside_unless_it_is_gone() {
    let mut board = Board::new(&[]);
    assert_eq!(retire(Ok(()), &mut board), Vec::<String>::new());
    assert_eq!(retire(Err(NicError::Gone), &mut board).len(), 1);
    assert_eq!(*board.resets.lock().unwrap(), 0);
    assert_eq!(retire(Err(NicError::Phy { mdic: 0 }), &mut board).len(), 1);
    assert_eq!(*board.resets.lock().unwrap(), 1);
}
