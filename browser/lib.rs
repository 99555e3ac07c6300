//! Nothing but tests: the memory report, opened in Chromium.
