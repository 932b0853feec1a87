//! What the shop sells, and to whom. Numbers decide everything, so the demo is the same each time.

use serde::{Deserialize, Serialize};

const CUSTOMERS: [(&str, &str); 8] = [
    ("Ada", "Lisbon"),
    ("Bela", "Vienna"),
    ("Chidi", "Lagos"),
    ("Dana", "Riga"),
    ("Emre", "Izmir"),
    ("Fumiko", "Osaka"),
    ("Gil", "Recife"),
    ("Hana", "Brno"),
];
const ITEMS: [(&str, u64); 6] = [
    ("kettle", 3_490),
    ("teapot", 4_250),
    ("cup", 890),
    ("tea, green", 1_200),
    ("tea, black", 1_100),
    ("tray", 2_600),
];

/// An order, as it is published.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) order: String,
    pub(super) customer: String,
    pub(super) email: String,
    pub(super) city: String,
    pub(super) item: String,
    pub(super) pieces: u64,
    pub(super) total_cents: u64,
}

impl Order {
    /// The order with this number, from 1.
    pub(super) fn number(number: u64) -> Self {
        let at = |step: u64, of: usize| usize::try_from(number * step % of as u64).unwrap_or_default();
        let (customer, city) = CUSTOMERS[at(5, CUSTOMERS.len())];
        let (item, cents) = ITEMS[at(7, ITEMS.len())];
        let pieces = 1 + number % 3;
        Order {
            order: format!("o-{number}"),
            customer: customer.into(),
            email: format!("{}@example.com", customer.to_lowercase()),
            city: city.into(),
            item: item.into(),
            pieces,
            total_cents: cents * pieces,
        }
    }

    /// The same with an address that no mail server accepts: the payload of its dead letter can be edited and redriven.
    pub(super) fn with_wrong_address(self) -> Self {
        Order { email: self.email.replace('@', " at "), ..self }
    }

    /// Its number again.
    pub(super) fn as_number(&self) -> u64 {
        self.order.trim_start_matches("o-").parse().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_keeps_its_number_and_has_an_address() {
        for number in [1, 42, 1_000_000] {
            let order = Order::number(number);
            assert_eq!(order.as_number(), number);
            assert!(order.email.contains('@') && order.total_cents > 0, "{order:?}");
            assert!(!order.with_wrong_address().email.contains('@'));
        }
    }
}
