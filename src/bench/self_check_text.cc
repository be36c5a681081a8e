// The text of the self-check: made up for it. Names, numbers and sentences come back, so that a cache that has lost its early
// rows or blurred them predicts the end of it worse.
#include "bench/self_check.h"

namespace kvartet {

std::string_view self_check_text() {
  return R"text(The keeper of the lighthouse at Corvan Point wrote down three things every evening: the height of the tide, the direction of the wind, and the name of every ship that passed. Her name was Maren Oldhave, and she had kept the book for nineteen years. Before her it was kept by her uncle Tobias, whose handwriting leaned so far to the left that visitors needed a mirror to read it.

On the first of March the tide stood at four metres, the wind came from the north-west, and two ships passed: the Anna Lise with timber and the Grey Heron with salt. On the second of March the tide stood at four metres and a half, the wind came from the north, and one ship passed: the Grey Heron, going home empty. On the third of March there was fog. Maren wrote that she had heard a bell and seen nothing, and that the lamp had burned from noon until the next morning, which took eleven litres of oil.

The oil came from the village by cart, on the first Monday of every month. The carter was called Josef Brand. He was a patient man with a bad knee, and he always stayed for a cup of tea. "How many ships this week?" he would ask, and Maren would open the book and count them with her finger. "Three," she would say, "if you count the Grey Heron twice." "You have to count her twice," Josef would answer. "She came, and she went."

In April a letter arrived from the harbour office. It said that the lamp would be replaced by an electric one, that nobody would be needed to light it, and that the book was no longer required. Maren read the letter twice and put it between the pages of the third of March, where the fog was. Then she wrote down the height of the tide, the direction of the wind, and the name of every ship that passed. The tide stood at four metres, the wind came from the north-west, and two ships passed: the Anna Lise with timber and the Grey Heron with salt.

When Josef Brand came with the oil on the first Monday of May, he asked how many ships there had been this week. Maren opened the book and counted them with her finger. "Three," she said, "if you count the Grey Heron twice." Josef drank his tea and looked out at the sea. "You have to count her twice," he answered. "She came, and she went."
)text";
}

}  // namespace kvartet
