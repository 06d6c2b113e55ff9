//! Size classes of slots: steps of 16 bytes up to 1 KiB, then about 6 % such that whole numbers of slots fill a slab.

/// Bytes of a slab.
pub(super) const SLAB_BYTES: usize = 128 << 10;
/// Slots begin at multiples of this.
const GRAIN: usize = 16;
/// Up to here each multiple of the grain is a class.
const FINE_BYTES: usize = 1024;
/// The largest slot: above it, the system's allocator wastes less.
pub(super) const MOST_BYTES: usize = SLAB_BYTES / 8;
/// How much larger the next class is at least, in percent.
const STEP_PERCENT: usize = 6;
/// Larger sizes are looked up in steps of so many bytes.
const COARSE: usize = 256;

/// The largest slot of which `slots` fill a slab.
const fn slot_of(slots: usize) -> usize {
    SLAB_BYTES / slots / GRAIN * GRAIN
}

const fn next(size: usize) -> usize {
    if size < FINE_BYTES {
        return size + GRAIN;
    }
    let mut slots = SLAB_BYTES / size;
    while slot_of(slots) * 100 < size * (100 + STEP_PERCENT) {
        slots -= 1;
    }
    if slot_of(slots) > MOST_BYTES { MOST_BYTES } else { slot_of(slots) }
}

/// How many classes there are.
pub(super) const CLASSES: usize = {
    let (mut count, mut size) = (1, GRAIN);
    while size < MOST_BYTES {
        size = next(size);
        count += 1;
    }
    count
};

/// Bytes of a slot of each class.
pub(super) static SIZES: [u32; CLASSES] = {
    let mut sizes = [GRAIN as u32; CLASSES];
    let mut at = 1;
    while at < CLASSES {
        sizes[at] = next(sizes[at - 1] as usize) as u32;
        at += 1;
    }
    sizes
};

/// The smallest class that can be right for sizes from `COARSE * index + 1`.
static FIRST: [u8; MOST_BYTES / COARSE] = {
    let mut first = [0; MOST_BYTES / COARSE];
    let (mut index, mut class) = (0, 0);
    while index < first.len() {
        while (SIZES[class] as usize) < index * COARSE + 1 {
            class += 1;
        }
        first[index] = class as u8;
        index += 1;
    }
    first
};
const _: () = assert!(CLASSES < 256, "a class is a byte");

/// The class of an allocation; nothing if it is too large for slots.
#[inline]
pub(super) fn class_of(bytes: usize) -> Option<usize> {
    if bytes <= FINE_BYTES {
        return Some(bytes.max(1).div_ceil(GRAIN) - 1);
    }
    let mut class = usize::from(*FIRST.get((bytes - 1) / COARSE)?);
    while (SIZES[class] as usize) < bytes {
        class += 1;
    }
    Some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_is_the_smallest_that_fits() {
        for bytes in 0..=MOST_BYTES {
            let class = class_of(bytes).unwrap();
            assert!(SIZES[class] as usize >= bytes);
            assert!(class == 0 || (SIZES[class - 1] as usize) < bytes, "{bytes}");
        }
        assert_eq!(class_of(MOST_BYTES + 1), None);
        assert_eq!(class_of(usize::MAX), None);
    }

    #[test]
    fn little_is_lost_to_rounding() {
        assert!(SIZES.is_sorted() && SIZES.iter().all(|size| size % 16 == 0));
        for pair in SIZES.windows(2).filter(|pair| pair[0] >= 1024) {
            let step = f64::from(pair[1]) / f64::from(pair[0]);
            assert!(step < 1.15, "{pair:?}");
        }
        for size in SIZES.map(|size| size as usize) {
            assert!(SLAB_BYTES % size < 1024, "{size}: {} bytes at the end of a slab", SLAB_BYTES % size);
        }
    }
}
