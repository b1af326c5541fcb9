# SPDX-License-Identifier: Apache-2.0
"""The picture that D-Bus and Varlink share: how long it is kept, and that no change is overlooked."""

from __future__ import annotations

from kubenpu.exporters.picture import Pictures
from kubenpu.model.view import View
from tests.fakes.dbus_node import FakeNode


class Changing(FakeNode):
    """Something changes while its View is being made."""

    pictures: Pictures
    reads = 0

    def view(self) -> View:
        self.reads += 1
        if self.reads == 1:
            self.pictures.forget()
        return super().view()


def test_a_picture_serves_everybody_for_a_while() -> None:
    pictures = Pictures(FakeNode())
    assert pictures.now() is pictures.now()


def test_what_changed_while_it_was_made_is_in_the_next() -> None:
    node = Changing()
    node.pictures = Pictures(node)
    first = node.pictures.now()
    assert node.pictures.now() is not first
    assert node.pictures.now() is node.pictures.now()
