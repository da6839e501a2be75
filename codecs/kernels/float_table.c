/* Frequency tables: counts to frequencies, the stored form, and what the coder and the decoder look up (16.6, 16.9). */
#include "float_cpu.h"

/* Decision 11. Each round takes the excess off the scale, which is never far from 4096: 256 symbols at most are
 * raised to 1. */
void float_normalise(const uint32_t counts[256], float_table *table) {
    int64_t total = 0, scale = FLOAT_PROBABILITY_SUM, scaled[256];
    for (int s = 0; s < 256; s++) total += counts[s];
    int64_t excess;
    for (;; scale -= excess) {
        excess = -FLOAT_PROBABILITY_SUM;
        for (int s = 0; s < 256; s++) {
            int64_t f = (counts[s] * scale + total / 2) / total;
            scaled[s] = counts[s] == 0 ? 0 : f > 1 ? f : 1;
            excess += scaled[s];
        }
        if (excess <= 0) break;
    }
    uint32_t largest = 0;
    for (uint32_t s = 1; s < 256; s++)
        if (scaled[s] > scaled[largest]) largest = s;
    scaled[largest] -= excess;
    for (int s = 0; s < 256; s++) table->frequency[s] = (uint16_t)scaled[s];
    table->most_frequent = largest;
    table->one_symbol = scaled[largest] == FLOAT_PROBABILITY_SUM;
}

size_t float_pack_table(const float_table *table, uint8_t *out) {
    uint32_t used = 0;
    memset(out, 0, float_align(FLOAT_TABLE_BITMAP + 256 * FLOAT_PROBABILITY_BITS / 8));
    for (int s = 0; s < 256; s++) {
        if (table->frequency[s] == 0) continue;
        uint32_t value = table->frequency[s] - 1u, bit = used++ * FLOAT_PROBABILITY_BITS;
        uint8_t *place = out + FLOAT_TABLE_BITMAP + bit / 8;
        out[s / 8] |= (uint8_t)(1 << s % 8);
        place[0] |= (uint8_t)(value << bit % 8);
        place[1] |= (uint8_t)(value << bit % 8 >> 8);
    }
    return float_align(FLOAT_TABLE_BITMAP + (used * FLOAT_PROBABILITY_BITS + 7) / 8);
}

int float_parse_table(const uint8_t *record, uint64_t length, float_table *table, uint64_t *size) {
    if (length < FLOAT_TABLE_BITMAP) return FLOAT_TABLE_CUT;
    uint32_t used = 0, sum = 0;
    for (int i = 0; i < FLOAT_TABLE_BITMAP; i++) used += (uint32_t)__builtin_popcount(record[i]);
    *size = float_align(FLOAT_TABLE_BITMAP + (used * FLOAT_PROBABILITY_BITS + 7) / 8);
    if (*size > length) return FLOAT_TABLE_CUT;
    memset(table, 0, sizeof *table);
    uint32_t bit = 0;
    for (uint32_t s = 0; s < 256; s++) {
        if (!(record[s / 8] >> s % 8 & 1)) continue;
        const uint8_t *place = record + FLOAT_TABLE_BITMAP + bit / 8;
        uint32_t frequency = ((place[0] | (uint32_t)place[1] << 8) >> bit % 8 & 4095) + 1;
        bit += FLOAT_PROBABILITY_BITS;
        sum += frequency;
        table->frequency[s] = (uint16_t)frequency;
        if (frequency > table->frequency[table->most_frequent]) table->most_frequent = s;
    }
    if (sum != FLOAT_PROBABILITY_SUM) return FLOAT_TABLE_SUM;
    table->one_symbol = table->frequency[table->most_frequent] == FLOAT_PROBABILITY_SUM;
    return FLOAT_OK;
}

void float_coding_table(const float_table *table, float_coding coding[256]) {
    uint32_t start = 0;
    for (int s = 0; s < 256; s++) {
        if (table->frequency[s] == 0) continue;
        float_encode_entry entry = float_make_entry(table->frequency[s], start);
        coding[s].reciprocal = entry.reciprocal;
        coding[s].packed = entry.frequency | entry.bias << 12 | entry.shift << 25;
        start += table->frequency[s];
    }
    for (int s = 0; s < 256; s++) {
        if (table->frequency[s] != 0) continue;
        coding[s] = coding[table->most_frequent];
        coding[s].packed |= FLOAT_ABSENT;
    }
}

void float_slot_table(const float_table *table, uint32_t slots[FLOAT_PROBABILITY_SUM]) {
    uint32_t slot = 0;
    for (uint32_t s = 0; s < 256; s++) {
        uint32_t frequency = table->frequency[s], entry = s | frequency << 20;
        for (uint32_t i = 0; i < frequency; i++) slots[slot++] = entry | i << 8;
    }
}
