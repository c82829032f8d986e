//! Faults that the model can be told to have, so that a driver's answer to each can be seen.

/// Which faults there are now. All are off at first and may be changed at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// CTRL.RST never clears.
    pub reset_hangs: bool,
    /// STATUS.GIO never clears: the master does not go quiet.
    pub master_stays_busy: bool,
    /// There is no light, whatever the configuration.
    pub no_link: bool,
    /// No command to the PHY ends: MSCA.MDICMD stays set.
    pub mdio_hangs: bool,
    /// Nobody answers on MDIO.
    pub no_phy: bool,
    /// A reset of the PHY never ends.
    pub phy_reset_hangs: bool,
    /// The PHY says that it is capable of no speed.
    pub phy_without_speeds: bool,
    /// The PHY never comes to an agreement with the other side.
    pub negotiation_hangs: bool,
    /// LINKS says that there is no link, whatever the PHY says.
    pub links_says_down: bool,
    /// Firmware that manages the machine keeps the link as it is (MMNGC.MNG_VETO).
    pub management_keeps_link: bool,
    /// The EEPROM's checksum is wrong.
    pub bad_checksum: bool,
    /// The EEPROM was not found, or its automatic read never ends: EEC.ARD stays clear.
    pub no_eeprom: bool,
    /// SWSM.SMBI always reads as taken.
    pub stuck_semaphore: bool,
    /// Firmware keeps its bits of SW_FW_SYNC set.
    pub firmware_holds_sync: bool,
    /// RXDCTL.ENABLE and TXDCTL.ENABLE never read back as set.
    pub queues_never_enable: bool,
    /// RXDCTL.ENABLE stays set, whatever is written, until a reset.
    pub queues_never_stop: bool,
    /// RDRXCTL.DMAIDONE stays clear.
    pub dma_never_initialised: bool,
    /// The security block never becomes ready (SECRXSTAT.SECRX_RDY).
    pub security_never_ready: bool,
    /// FDIRCTRL.INIT_DONE stays clear, and FDIRCMD never completes.
    pub flow_director_hangs: bool,
    /// No filter that is added to the flow director stays; FDIRFSTAT counts it.
    pub flow_director_forgets: bool,
    /// One in so many received packets is written back with RXE set; 0 is none.
    pub error_every: u32,
    /// One in so many received packets is written back with this many bytes more than its buffer has; 0 is none.
    pub overlong_every: u32,
    /// One in so many received packets is written back with a length of 0; 0 is none.
    pub empty_every: u32,
    /// Interrupts are lost.
    pub no_interrupts: bool,
    /// One in so many ticks raises vector 0 for nothing; 0 is none.
    pub spurious_every: u32,
    /// No descriptor is ever transmitted.
    pub transmitter_hangs: bool,
    /// One in so many messages of a virtual function has no answer; 0 is none.
    pub mailbox_lost_every: u32,
    /// One in so many messages of a virtual function is answered as if it were another one; 0 is none.
    pub mailbox_wrong_every: u32,
    /// How long each answer to a virtual function takes, in microseconds.
    pub mailbox_delay_us: u64,
    /// How many of the six versions of messages, the newest first, the physical function does not know.
    pub mailbox_versions_missing: usize,
    /// The physical function is reset under its virtual one after so many more reads; 0 is never.
    pub reset_after: u32,
    /// The device is gone: every read is all ones, every write is lost.
    pub removed: bool,
    /// The device is gone after so many more reads; 0 is never.
    pub removed_after: u32,
}
