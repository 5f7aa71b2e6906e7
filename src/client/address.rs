//! Where a server is, as a person or a setting names it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A server's address: `HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A host name or IP address with its port; resolved at each connect.
    Tcp(String),
    /// The path of a Unix stream socket.
    Unix(PathBuf),
}

/// The text names no server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be HOST:PORT or unix:PATH (as in 127.0.0.1:5327)")]
pub struct AddressError;

impl FromStr for ServerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<ServerAddress, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(AddressError),
                path => Ok(ServerAddress::Unix(path.into())),
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or(AddressError)?;
        let is_bare_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        match port.parse::<u16>() {
            Ok(1..) if !host.is_empty() && !is_bare_ipv6 => Ok(ServerAddress::Tcp(text.into())),
            _ => Err(AddressError),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp(address) => f.write_str(address),
            ServerAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_alike() {
        for text in [
            "127.0.0.1:5327",
            "[::1]:5327",
            "locks.example:1",
            "unix:/run/leasehold.sock",
            "unix:relative",
        ] {
            let address: ServerAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:0",
            "127.0.0.1:65536",
            "127.0.0.1:x",
            ":5327",
            "::1:5327",
            "unix:",
        ] {
            assert_eq!(text.parse::<ServerAddress>(), Err(AddressError), "{text:?}");
        }
    }
}
