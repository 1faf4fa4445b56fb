from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('fleets', '0002_watched'),
    ]

    operations = [
        migrations.AddField(
            model_name='node',
            name='cordon_reason',
            field=models.CharField(blank=True, default='', max_length=200),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name='node',
            name='draining',
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name='node',
            name='drained_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
