//! `metadata.json`.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The version of the folder's layout that Apple's loader takes.
const ASSET_VERSION: &str = "2.0";

/// Seconds of a day.
const DAY: u64 = 86_400;

/// What `metadata.json` says. Keys that are not known are ignored when it is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssetMetadata {
    /// The tool that made the asset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
    /// When it was made, as [`creation_date`] writes it. Apple's loader does not need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_date: Option<String>,
    /// Who made the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// The licence of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// What the model is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Metadata as they are stored.
#[derive(Serialize, Deserialize)]
struct Versioned<M> {
    #[serde(rename = "assetVersion")]
    version: String,
    #[serde(flatten)]
    metadata: M,
}

impl AssetMetadata {
    /// Metadata that name the producer only.
    pub fn new(producer: impl Into<String>) -> Self {
        Self { producer: Some(producer.into()), creation_date: None, author: None, license: None, description: None }
    }

    pub(super) fn from_json(text: &[u8]) -> Result<Self> {
        let stored: Versioned<Self> = serde_json::from_slice(text).map_err(|error| Error::input(error.to_string()))?;
        if stored.version == ASSET_VERSION {
            Ok(stored.metadata)
        } else {
            Err(Error::input("a version of assets that is not supported")
                .at("$.assetVersion")
                .found(format!("`{}`", stored.version))
                .expected(format!("`{ASSET_VERSION}`")))
        }
    }

    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        let stored = Versioned { version: ASSET_VERSION.to_owned(), metadata: self };
        let mut text = serde_json::to_vec_pretty(&stored).map_err(|error| Error::input(error.to_string()))?;
        text.push(b'\n');
        Ok(text)
    }
}

/// A time in seconds since 1970, such as `SOURCE_DATE_EPOCH` gives, as `YYYYMMDDThhmmssZ`.
///
/// # Errors
/// When the year would have more than four digits.
pub fn creation_date(seconds: u64) -> Result<String> {
    let (year, month, day) = civil_date(seconds / DAY);
    if year > 9999 {
        return Err(Error::input("a date after the year 9999").found(format!("{seconds} seconds since 1970")));
    }
    let time = seconds % DAY;
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    Ok(format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z"))
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar.
///
/// Years are counted from March, so that the leap day is the last of its year, in eras of 400 years.
const fn civil_date(days: u64) -> (u64, u64, u64) {
    const DAYS_FROM_YEAR_0: u64 = 719_468;
    const DAYS_OF_ERA: u64 = 146_097;
    let days = days + DAYS_FROM_YEAR_0;
    let (era, day_of_era) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
    let leap_days = day_of_era / 1460 + day_of_era / (DAYS_OF_ERA - 1) - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_from_march + 2) / 5 + 1;
    let month = if months_from_march < 10 { months_from_march + 3 } else { months_from_march - 9 };
    let year = era * 400 + year_of_era + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}
