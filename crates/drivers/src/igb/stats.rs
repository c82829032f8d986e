//! What the NIC counts, kept as 64 bits: its own counters are cleared by reading, so a thread of its own reads them, and
//! looks at the link.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bywash_hw::igb::regs::{self, STATUS};
use bywash_hw::reg::{Access, Register};
use bywash_port::Counter;
use bywash_sys::function::Registers;

use super::{Link, link};
use crate::intel::{Bar, Ticker, lock};

/// A counter: its name, its register, and the register of its upper half when it has more than 32 bits.
type Statistic = (&'static str, &'static Register, Option<&'static Register>);

/// All of them. Of arrays the sum counts.
const STATISTICS: [Statistic; 44] = [
    ("rx_good_packets", &regs::GPRC, None),
    ("rx_good_bytes", &regs::GORCL, Some(&regs::GORCH)),
    ("rx_all_packets", &regs::TPR, None),
    ("rx_all_bytes", &regs::TORL, Some(&regs::TORH)),
    ("rx_broadcast", &regs::BPRC, None),
    ("rx_multicast", &regs::MPRC, None),
    ("rx_64", &regs::PRC64, None),
    ("rx_65_to_127", &regs::PRC127, None),
    ("rx_128_to_255", &regs::PRC255, None),
    ("rx_256_to_511", &regs::PRC511, None),
    ("rx_512_to_1023", &regs::PRC1023, None),
    ("rx_1024_and_more", &regs::PRC1522, None),
    ("rx_no_buffer_space", &regs::MPC, None),
    ("rx_no_buffer", &regs::RNBC, None),
    ("rx_no_descriptor", &regs::RQDPC, None),
    ("rx_crc_errors", &regs::CRCERRS, None),
    ("rx_alignment_errors", &regs::ALGNERRC, None),
    ("rx_symbol_errors", &regs::SYMERRS, None),
    ("rx_errors", &regs::RXERRC, None),
    ("rx_length_errors", &regs::RLEC, None),
    ("rx_undersize", &regs::RUC, None),
    ("rx_fragments", &regs::RFC, None),
    ("rx_oversize", &regs::ROC, None),
    ("rx_jabber", &regs::RJC, None),
    ("rx_management", &regs::MGTPRC, None),
    ("rx_management_dropped", &regs::MGTPDC, None),
    ("rx_xon", &regs::XONRXC, None),
    ("rx_xoff", &regs::XOFFRXC, None),
    ("tx_good_packets", &regs::GPTC, None),
    ("tx_good_bytes", &regs::GOTCL, Some(&regs::GOTCH)),
    ("tx_all_packets", &regs::TPT, None),
    ("tx_all_bytes", &regs::TOTL, Some(&regs::TOTH)),
    ("tx_broadcast", &regs::BPTC, None),
    ("tx_multicast", &regs::MPTC, None),
    ("tx_cut", &regs::TSCTC, None),
    ("tx_64", &regs::PTC64, None),
    ("tx_65_to_127", &regs::PTC127, None),
    ("tx_128_to_255", &regs::PTC255, None),
    ("tx_256_to_511", &regs::PTC511, None),
    ("tx_512_to_1023", &regs::PTC1023, None),
    ("tx_1024_and_more", &regs::PTC1522, None),
    ("tx_xon", &regs::XONTXC, None),
    ("tx_xoff", &regs::XOFFTXC, None),
    ("tx_management", &regs::MGTPTC, None),
];

/// Reads all once, so that counting begins at 0.
pub(super) fn clear<R: Registers>(bar: &Bar<R>) {
    for register in regs::TABLE.iter().filter(|register| register.access == Access::RC) {
        read(bar, register);
    }
}

/// A register, or the sum of an array.
fn read<R: Registers>(bar: &Bar<R>, register: &Register) -> u64 {
    (0..register.count()).map(|index| u64::from(bar.get_at(register, index))).sum()
}

/// What was counted so far.
#[derive(Debug)]
struct Counted {
    statistics: [u64; STATISTICS.len()],
    link: Link,
    link_losses: u64,
    gone: bool,
}

impl Counted {
    fn see(&mut self, link: Link) {
        let was = std::mem::replace(&mut self.link, link);
        self.link_losses += u64::from(was.up && !link.up);
    }

    /// Reads everything; what was counted since is added.
    fn update<R: Registers>(&mut self, bar: &Bar<R>) {
        let status = bar.get(&STATUS);
        if status == u32::MAX {
            self.gone = true;
            return;
        }
        self.see(link::of(status));
        for (sum, (_, low, high)) in self.statistics.iter_mut().zip(STATISTICS) {
            // The low half first: the high one is kept meanwhile, and reading it clears both.
            *sum += read(bar, low);
            *sum += high.map_or(0, |high| read(bar, high) << 32);
        }
    }
}

/// Looks at link and statistics from time to time.
#[derive(Debug)]
pub(super) struct Watch<R> {
    bar: Bar<R>,
    counted: Arc<Mutex<Counted>>,
    ticker: Ticker,
}

impl<R: Registers> Watch<R> {
    /// Begins to; without a period nothing is looked at until it is asked for. All that is lost then is what sticks meanwhile.
    pub(super) fn start(bar: Bar<R>, period: Option<Duration>) -> Self {
        let counted = Counted {
            statistics: [0; STATISTICS.len()],
            link: link::state(&bar),
            link_losses: 0,
            gone: false,
        };
        let counted = Arc::new(Mutex::new(counted));
        let ticker = Ticker::start("igb-watch", period, {
            let (bar, counted) = (bar.clone(), counted.clone());
            move || lock(&counted).update(&bar)
        });
        Self { bar, counted, ticker }
    }

    /// Somebody has looked at the link.
    pub(super) fn see(&self, link: Link) {
        lock(&self.counted).see(link);
    }

    /// Everything as of now.
    pub(super) fn counters(&self) -> Vec<Counter> {
        let mut counted = lock(&self.counted);
        counted.update(&self.bar);
        let statistics =
            STATISTICS.iter().zip(counted.statistics).map(|(statistic, value)| (statistic.0, value));
        let own = [("link_losses", counted.link_losses), ("device_gone", u64::from(counted.gone))];
        statistics.chain(own).map(|(name, value)| Counter { name, value }).collect()
    }

    /// Ends the thread.
    pub(super) fn stop(&mut self) {
        self.ticker.stop();
    }
}
