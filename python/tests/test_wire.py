import unittest

import checkout  # noqa: F401
from DLMLocker import _wire

ALPHABET = "1aA2bB3cC4dD5eE6fF7gG8hH9iI0jJ!kK@lL#mM$nN%oO^pP&qQ*rR(sS)tT/uU?vV=wW+xX;yY:zZ"


class Wire(unittest.TestCase):
    def test_every_byte_becomes_its_two_letters(self) -> None:
        for byte in range(256):
            letters = ALPHABET[byte // 78] + ALPHABET[byte % 78]
            self.assertEqual(_wire.encode(bytes([byte])), letters.encode())
            self.assertEqual(_wire.decode(letters.encode()), bytes([byte]))

    def test_a_message_is_encoded_byte_by_byte(self) -> None:
        # '{' is 123 = 1 * 78 + 45, '}' is 125 = 1 * 78 + 47.
        self.assertEqual(_wire.encode(b"{}"), b"a^aP")
        self.assertEqual(_wire.decode(b"a^aP"), b"{}")
        self.assertEqual(_wire.encode(b""), b"")
        self.assertEqual(_wire.decode(b""), b"")

    def test_every_pair_of_letters_is_decoded_or_refused(self) -> None:
        valid = {(ALPHABET[byte // 78] + ALPHABET[byte % 78]).encode(): byte for byte in range(256)}
        for number in range(0x10000):
            pair = number.to_bytes(2, "big")
            # Between the largest and the smallest byte, where a carry would do most harm.
            message = b"28" + pair + b"11"
            if pair in valid:
                self.assertEqual(_wire.decode(message), bytes([255, valid[pair], 0]))
            else:
                with self.assertRaises(ValueError, msg=repr(pair)):
                    _wire.decode(message)

    def test_an_odd_number_of_letters_is_refused(self) -> None:
        for letters in (b"1", b"1a1", b"2Z2"):
            with self.assertRaises(ValueError):
                _wire.decode(letters)

    def test_ten_mebibytes_go_there_and_back(self) -> None:
        message = bytes(range(256)) * (10 * 1024 * 1024 // 256)
        self.assertEqual(_wire.decode(_wire.encode(message)), message)


if __name__ == "__main__":
    unittest.main()
