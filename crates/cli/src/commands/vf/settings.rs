//! What a virtual function is and may do: options of `vf create`, for all that are made, and of `vf set`, for one.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bywash_sys::pci::Device;
use bywash_sys::route::{Mac, Route, VfLink, VfSetting};
use clap::{Args as ClapArgs, ValueEnum};

use crate::failure::Failure;

/// How long a NIC's link may take to come back: drivers start the NIC anew when it gets functions.
const LINK_PATIENCE: Duration = Duration::from_secs(10);

/// The options.
#[derive(ClapArgs, Debug)]
#[group(id = "setting", multiple = true)]
pub(super) struct Settings {
    /// Its Ethernet address; with `vf create` the first one's, and the others have those that follow
    #[arg(long, value_name = "MAC")]
    mac: Option<Mac>,
    /// Its VLAN, and the priority of its packets there; 0 takes it out of any
    #[arg(long, value_name = "ID[:PRIORITY]", value_parser = vlan)]
    vlan: Option<VfSetting>,
    /// Drop its packets that have another source than its own address
    #[arg(long, value_name = "WHEN")]
    spoof_check: Option<Switch>,
    /// Let it change its address and receive all multicast
    #[arg(long, value_name = "WHEN")]
    trust: Option<Switch>,
    /// Most Mbit/s that it sends, and least that are kept for it; 0 is no limit
    #[arg(long, value_name = "MOST[:LEAST]", value_parser = rate)]
    rate: Option<VfSetting>,
    /// Its link: as the port's, always up, always down
    #[arg(long, value_name = "STATE")]
    link: Option<LinkArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LinkArg {
    Auto,
    Enable,
    Disable,
}

fn pair(text: &str) -> Result<(u32, Option<u32>), String> {
    let (first, second) = text.split_once(':').map_or((text, None), |(first, second)| (first, Some(second)));
    let number = |text: &str| text.parse().map_err(|_| format!("'{text}' is no number"));
    Ok((number(first)?, second.map(number).transpose()?))
}

fn vlan(text: &str) -> Result<VfSetting, String> {
    let (id, priority) = pair(text)?;
    let id = u16::try_from(id).ok().filter(|id| *id <= 4094).ok_or("VLANs are 0 to 4094")?;
    let priority =
        u8::try_from(priority.unwrap_or(0)).ok().filter(|it| *it <= 7).ok_or("priorities are 0 to 7")?;
    Ok(VfSetting::Vlan { id, priority })
}

fn rate(text: &str) -> Result<VfSetting, String> {
    let (most, least) = pair(text)?;
    Ok(VfSetting::Rate { least: least.unwrap_or(0), most })
}

impl Settings {
    /// Those of the function that is so many behind the first.
    fn of(&self, number: u32) -> Result<Vec<VfSetting>, Failure> {
        let link = self.link.map(|link| match link {
            LinkArg::Auto => VfLink::Auto,
            LinkArg::Enable => VfLink::Enable,
            LinkArg::Disable => VfLink::Disable,
        });
        let settings = [
            self.mac.map(|mac| following(mac, number)).transpose()?.map(VfSetting::Mac),
            self.vlan,
            self.spoof_check.map(|switch| VfSetting::SpoofCheck(switch == Switch::On)),
            self.trust.map(|switch| VfSetting::Trust(switch == Switch::On)),
            self.rate,
            link.map(VfSetting::Link),
        ];
        Ok(settings.into_iter().flatten().collect())
    }

    /// Whether there are addresses for so many functions.
    pub(super) fn check(&self, count: u32) -> Result<(), Failure> {
        self.of(count.saturating_sub(1)).map(drop)
    }

    /// Makes the settings of some functions of a NIC, those behind the first with addresses that follow. Drivers limit no rate
    /// while the link is down: it gets some time to come up first.
    pub(super) fn make(&self, nic: &Device, numbers: impl Iterator<Item = u32>) -> Result<(), Failure> {
        if self.of(0)?.is_empty() {
            return Ok(());
        }
        let interface = interface(nic)?;
        let mut route = Route::open()?;
        let gone = || Failure::Usage(format!("{interface} is gone"));
        let mut link = route.link(&interface)?.ok_or_else(gone)?;
        let begun = Instant::now();
        while self.rate.is_some() && !link.carrier && begun.elapsed() < LINK_PATIENCE {
            sleep(Duration::from_millis(20));
            link = route.link(&interface)?.ok_or_else(gone)?;
        }
        for (place, number) in (0..).zip(numbers) {
            // One at a time, so that a refusal names the setting; those before it stay.
            for setting in self.of(place)? {
                let set = route.set_virtual_function(link.index, number, &[setting]);
                set.map_err(|error| {
                    Failure::Usage(format!("{interface}'s driver does not take {}: {error}", flag(setting)))
                })?;
            }
        }
        Ok(())
    }
}

/// The address that is so many behind another, of the same maker.
fn following(mac: Mac, number: u32) -> Result<Mac, Failure> {
    let [a, b, c, d, e, f] = mac.0;
    let last = u32::from_be_bytes([0, d, e, f]).checked_add(number).filter(|last| *last < 1 << 24);
    let [_, d, e, f] = last
        .ok_or_else(|| Failure::Usage(format!("there are not so many addresses behind {mac} (--mac)")))?
        .to_be_bytes();
    Ok(Mac([a, b, c, d, e, f]))
}

/// The option that a setting comes from.
fn flag(setting: VfSetting) -> &'static str {
    match setting {
        VfSetting::Mac(_) => "--mac",
        VfSetting::Vlan { .. } => "--vlan",
        VfSetting::SpoofCheck(_) => "--spoof-check",
        VfSetting::Trust(_) => "--trust",
        VfSetting::Rate { .. } => "--rate",
        VfSetting::Link(_) => "--link",
    }
}

/// The kernel's interface of a NIC, by whose driver its functions are set.
pub(super) fn interface(nic: &Device) -> Result<String, Failure> {
    nic.interfaces().into_iter().next().ok_or_else(|| {
        Failure::Usage(format!(
            "{} is no interface here: its functions are set by the kernel's driver, in the network namespace of its interface",
            nic.address()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_each_other_within_a_maker() {
        let mac = |text: &str| text.parse::<Mac>().unwrap();
        assert_eq!(following(mac("02:00:00:00:01:00"), 0).unwrap(), mac("02:00:00:00:01:00"));
        assert_eq!(following(mac("02:00:00:00:00:ff"), 2).unwrap(), mac("02:00:00:00:01:01"));
        assert!(following(mac("02:00:00:ff:ff:ff"), 1).is_err());
    }
}
