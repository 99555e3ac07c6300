//! Nothing but tests: the pages of kiln-report, opened in Chromium.
