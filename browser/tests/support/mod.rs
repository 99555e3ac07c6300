//! Screens that pages are shown on, for the tests of all pages.

use fantoccini::{Client, Locator};
use serde_json::json;

use super::pretend;

/// The pixels of a desk and of a phone, and whether the reader wants dark pages.
pub(crate) const SCREENS: [([u32; 2], bool); 4] =
    [([1400, 900], false), ([1400, 900], true), ([390, 844], false), ([390, 844], true)];

/// Loads the page again, on a screen of so many pixels.
pub(crate) async fn on_screen(client: &Client, [width, height]: [u32; 2], dark: bool) {
    let mobile = width < 600;
    let metrics =
        json!({"width": width, "height": height, "deviceScaleFactor": if mobile { 2 } else { 1 }, "mobile": mobile});
    pretend(client, "Emulation.setDeviceMetricsOverride", metrics).await;
    let scheme = if dark { "dark" } else { "light" };
    let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
    pretend(client, "Emulation.setEmulatedMedia", media).await;
    client.refresh().await.unwrap();
}

/// How many of the elements are shown.
pub(crate) async fn shown(client: &Client, query: &str) -> usize {
    let mut shown = 0;
    for element in client.find_all(Locator::Css(query)).await.unwrap() {
        shown += usize::from(element.is_displayed().await.unwrap());
    }
    shown
}
