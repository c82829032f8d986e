//! Addresses of PCI functions: domain, bus, device and function, as `0000:03:00.0`.

use std::fmt;
use std::str::FromStr;

/// Where a PCI function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no PCI address: write 0000:03:00.0, as lspci -D prints it")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    /// The domain may be left out when it is 0, as lspci(8) does.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let parse = || {
            let (front, function) = text.rsplit_once('.')?;
            let (front, device) = front.rsplit_once(':')?;
            let (domain, bus) = front.rsplit_once(':').unwrap_or(("0000", front));
            let hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
                let fits = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                u32::from_str_radix(text, 16).ok().filter(|_| fits)
            };
            Some(Self {
                domain: hex(domain, 4..=8)?,
                bus: u8::try_from(hex(bus, 2..=2)?).ok()?,
                device: u8::try_from(hex(device, 2..=2)?).ok().filter(|device| *device < 32)?,
                function: u8::try_from(hex(function, 1..=1)?).ok().filter(|function| *function < 8)?,
            })
        };
        parse().ok_or_else(|| AddressError(text.into()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_and_without_a_domain() {
        for (text, whole) in [
            ("0000:03:00.0", "0000:03:00.0"),
            ("03:1f.7", "0000:03:1f.7"),
            ("0001:FF:00.1", "0001:ff:00.1"),
            ("10000:e1:00.0", "10000:e1:00.0"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), whole);
        }
        assert!("0000:03:00.0".parse::<Address>().unwrap() < "0000:03:00.1".parse().unwrap());
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "eth0",
            "03:00",
            "3:0.0",
            "03:20.0",
            "03:00.8",
            "03:00.10",
            "0:03:00.0",
            "../03:00.0",
            "0000:03:+0.0",
            "0000:0000:03:00.0",
            "123456789:03:00.0",
        ] {
            assert_eq!(text.parse::<Address>(), Err(AddressError(text.into())));
        }
    }
}
